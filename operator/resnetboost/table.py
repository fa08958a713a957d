"""Columns of metrics: plain lists, which become arrays or a data frame where NumPy or pandas is installed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

Value = int | float | str


class Table(Mapping[str, Sequence[Any]]):
    """Columns by name, all of one length, with `nan` for a missing number."""

    def __init__(self, columns: Mapping[str, Sequence[Value]]) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of columns, as of every mapping."""
        return len(self._columns)

    @property
    def length(self) -> int:
        """The number of rows."""
        return len(next(iter(self._columns.values()), []))

    def rows(self) -> list[dict[str, Value]]:
        """One mapping per row."""
        return [dict(zip(self._columns, row, strict=True)) for row in zip(*self._columns.values(), strict=True)]

    def to_numpy(self) -> "dict[str, NDArray[np.generic]]":
        """An array per column."""
        import numpy as np

        return {name: np.array(values) for name, values in self._columns.items()}

    def to_pandas(self) -> "pd.DataFrame":
        """A data frame with a row per row."""
        import pandas as pd

        return pd.DataFrame(self._columns)

    def __repr__(self) -> str:
        return f"<Table of {self.length} rows: {', '.join(self._columns)}>"
