"""How each family of models writes reasoning and tool calls, and the reading of it."""
