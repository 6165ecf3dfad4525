"""What everything else speaks of: entries, what is found of them, policy, errors."""
