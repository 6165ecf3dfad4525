"""What the adapters of all frameworks have in common, and the models that both may use."""
