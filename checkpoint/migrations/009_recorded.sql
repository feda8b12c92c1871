-- What a node records in its middle (a durable step's result, a moment, a random number) stands in the ledger, beside
-- operations and model calls.

alter table operations drop constraint operations_kind_check;
alter table operations add constraint operations_kind_check check (kind in ('tool', 'model', 'step'));
