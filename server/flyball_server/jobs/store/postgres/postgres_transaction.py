"""A transaction on PostgreSQL: rows that are inserted or replaced go there in one statement."""

from __future__ import annotations

import functools
from typing import Any

from sqlalchemy import ARRAY, Connection, Table, bindparam, func, select
from sqlalchemy.dialects.postgresql import insert

from flyball_server.jobs.store.sql.sql_transaction import AnyInsert, SqlTransaction, replacing


class PostgresTransaction(SqlTransaction):
    """JobWriter over one connection inside a transaction.

    Args:
        connection: inside a transaction.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, insert)

    def _upsert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        if len(rows) == 1:
            super()._upsert(table, rows)
            return
        # PostgreSQL replaces no row twice in a statement.
        keys = [column.name for column in table.primary_key]
        last = {tuple(row[key] for key in keys): row for row in rows}.values()
        names = [column.name for column in table.columns]
        arrays = {f"all_{name}": [row[name] for row in last] for name in names}
        self._connection.execute(_inserting_all(table), arrays)


@functools.cache
def _inserting_all(table: Table) -> AnyInsert:
    """An INSERT of any number of rows, each column given as one array `all_NAME`."""
    columns = [
        func.unnest(bindparam(f"all_{column.name}", type_=ARRAY(column.type)))
        for column in table.columns
    ]
    names = [column.name for column in table.columns]
    return replacing(table, insert(table).from_select(names, select(*columns)))
