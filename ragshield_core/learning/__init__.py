"""What a guard learns of writes, as events that can be kept, and how it stands."""
