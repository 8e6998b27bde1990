"""What the studio knows: one SQLite file that the server and its workers share, and that anybody may read."""

from jitdnn.studio.store.series import Since
from jitdnn.studio.store.store import Row, Store

__all__ = ["Row", "Since", "Store"]
