"""Home Assistant's own code as a client: its integrations from the wheel, and what they were seen to send."""
