"""What the backends that compute have in common: a request's tokens and draws, guesses, the order of KV ops."""
