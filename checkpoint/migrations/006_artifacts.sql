-- Standfast, artifacts: contents that are too large for a checkpoint, each kept once under the SHA-256 of its bytes.
--
-- Values hold an artifact's id; the bytes stand in chunks here, or where place says. A thread that stores such a value
-- refers to the artifact, in the transaction that stores it, for as long as the thread is there. What nobody refers to
-- is deleted after keep_until. The foreign key of a reference locks its artifact against the sweep, and the sweep
-- locks an artifact before it looks for references: whichever comes second sees the other.
--
-- artifacts and artifact_chunks are global: threads share contents.

create table artifacts (
    sha256     text primary key check (length(sha256) = 64),
    size       bigint not null,
    place      text not null,                    -- '' for the chunks below, else the folder's URL
    stored     boolean not null default false,   -- false while the bytes are on their way to their place
    keep_until timestamptz not null,             -- not swept before that, so that whoever has just put it can refer
    created_at timestamptz not null default standfast.now()
);
create index artifacts_age on artifacts (keep_until);

create table artifact_chunks (
    sha256 text not null references artifacts (sha256) on delete cascade,
    index  integer not null,
    bytes  bytea not null,
    primary key (sha256, index)
);
alter table artifact_chunks alter column bytes set storage external;  -- most contents are compressed already

create table artifact_references (
    thread_id  text not null references threads (id) on delete cascade,
    sha256     text not null references artifacts (sha256),
    label      bytea not null,                   -- name and media type, as the thread knows it
    created_at timestamptz not null default standfast.now(),
    primary key (thread_id, sha256)
);
create index artifact_references_to on artifact_references (sha256);
create index artifact_references_recent on artifact_references (created_at desc, thread_id, sha256);

-- Locks what may go, and looks again for references with a fresh snapshot. The rows are deleted by the caller, in the
-- same transaction, when what stands elsewhere is gone.
create function sweep_artifacts_1(most integer) returns table (sha256 text, place text) language plpgsql as $$
declare
    locked text[];
begin
    locked := array(
        select a.sha256 from artifacts a
         where a.keep_until < (select standfast.now())
           and not exists (select 1 from artifact_references r where r.sha256 = a.sha256)
         order by a.keep_until limit most for update skip locked);
    return query
        select a.sha256, a.place from artifacts a
         where a.sha256 = any(locked) and not exists (select 1 from artifact_references r where r.sha256 = a.sha256);
end $$;
