"""What the adapters of all frameworks have in common; users need none of it."""
