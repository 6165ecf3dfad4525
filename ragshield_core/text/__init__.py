"""What detectors look at in texts, one idea a module; none of them knows a detector."""
