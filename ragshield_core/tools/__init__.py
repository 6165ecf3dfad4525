"""Tools beside a guard: audits, canaries, evaluation, review, telemetry.

The kernel imports none of them: it finds them by entry points, see :mod:`ragshield_core.hooks`.
"""
