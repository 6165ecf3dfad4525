"""The write protocol, and what the adapters of all frameworks have in common."""
