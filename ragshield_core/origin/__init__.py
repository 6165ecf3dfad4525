"""Origin that is proven: stamps of those who vouch for entries, and the trust in their keys."""

from ragshield_core.origin.corroboration import corroborated
from ragshield_core.origin.origins import Origin, Origins, Tier, Voucher
from ragshield_core.origin.stamps import OriginKey

__all__ = ["Origin", "OriginKey", "Origins", "Tier", "Voucher", "corroborated"]
