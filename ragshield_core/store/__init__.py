"""The write protocol and other code that the adapters of all frameworks share."""
