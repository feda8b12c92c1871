"""Everything that touches Postgres: database, saver, codec, leases, approvals, documents, errors."""
