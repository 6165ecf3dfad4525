"""Types that all other packages share: entries, findings, policy, errors."""
