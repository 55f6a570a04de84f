"""The secret bits by which records are viewed, under a key that ages with the steps."""

from dpft.privacy.cipher import Address, Purpose, keystream
from dpft.privacy.keys import AgingKey

_LOW = 2**32


class ViewStream:
    """Random bytes for each record at each step, of ChaCha20."""

    def __init__(self, key: AgingKey) -> None:
        """Draws from ``key``, which ages with the steps."""
        self._key = key

    def bits(self, step: int, record: int, size: int) -> bytes:
        """Returns ``size`` bytes for a record's view, the same whenever they are asked for.

        Args:
            step: The run's step, counted from 0; not forgotten.
            record: Its place among the rows.
            size: How many.
        """
        high, low = divmod(record, _LOW)
        address = Address(Purpose.VIEWS, step, parameter=high, block=low)
        return bytes(keystream(self._key.at(step), address, size))
