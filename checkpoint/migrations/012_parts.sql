-- Standfast, large parts: texts and bytes of the state that are too large for a checkpoint.
--
-- A part stands as an artifact, and the row of its value names it in `parts`. A reference that a thread has for its
-- parts only (as_part) goes when no row names the part any more; any other stays for as long as the thread is there.
--
-- SQLSTATE: SF005 UnknownArtifact

alter table checkpoint_blobs add column parts text[];  -- the SHA-256 of each; null for none
alter table checkpoint_writes add column parts text[];
alter table artifact_references add column as_part boolean not null default false;

create or replace function refer_1(thread text, contents text[], labels bytea[], as_parts boolean) returns void
language plpgsql as $$
begin
    insert into artifact_references (thread_id, sha256, label, as_part)
    select thread, r.sha256, r.label, as_parts from unnest(contents, labels) as r (sha256, label) order by r.sha256
    on conflict (thread_id, sha256) do update set as_part = false
     where artifact_references.as_part and not excluded.as_part;
exception when foreign_key_violation then
    raise exception 'one of the artifacts % of thread % is not there any more', contents, thread
        using errcode = 'SF005';
end $$;

-- To be called after rows of a thread's checkpoints were deleted or left out, in the same transaction.
create or replace function drop_parts_1(thread text) returns void language sql as $$
    delete from artifact_references r
     where r.thread_id = thread and r.as_part
       and not exists (select 1 from checkpoint_blobs b where b.thread_id = thread and r.sha256 = any(b.parts))
       and not exists (select 1 from checkpoint_writes w where w.thread_id = thread and r.sha256 = any(w.parts));
$$;

-- The checkpoints that lead to `at`, with everything that they need. What had begun from `at` on is left out: its
-- tasks begin anew, and find in the ledger what was done.
create or replace function copy_chain_1(source text, at text, target text, from_run uuid, run uuid) returns void
language sql as $$
    with recursive chain (checkpoint_id, parent) as (
        select c.checkpoint_id, c.parent_checkpoint_id from checkpoints c
         where c.thread_id = source and c.checkpoint_ns = '' and c.checkpoint_id = at
        union all
        select c.checkpoint_id, c.parent_checkpoint_id from checkpoints c join chain on c.checkpoint_id = chain.parent
         where c.thread_id = source and c.checkpoint_ns = ''),
    wanted as materialized (
        select c.* from checkpoints c join chain on chain.checkpoint_id = c.checkpoint_id
         where c.thread_id = source and c.checkpoint_ns = ''
        union all
        select c.* from checkpoints c join chain on chain.checkpoint_id = c.metadata -> 'parents' ->> ''
         where c.thread_id = source and c.checkpoint_ns <> '' and chain.checkpoint_id <> at),
    copied as (
        insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
                                 metadata, sealed)
        select target, w.checkpoint_ns, w.checkpoint_id, w.parent_checkpoint_id, w.type, w.checkpoint,
               case when w.metadata ->> 'run_id' = from_run::text
                    then jsonb_set(w.metadata, '{run_id}', to_jsonb(run::text)) else w.metadata end,
               w.sealed
          from wanted w),
    blobs as (
        insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob, parts)
        select target, b.checkpoint_ns, b.channel, b.version, b.type, b.blob, b.parts
          from checkpoint_blobs b
         where b.thread_id = source and exists (
            select 1 from wanted w
             where w.checkpoint_ns = b.checkpoint_ns and w.checkpoint -> 'channel_versions' ->> b.channel = b.version))
    insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob,
                                   parts)
    select target, x.checkpoint_ns, x.checkpoint_id, x.task_id, x.task_path, x.idx, x.channel, x.type, x.blob,
           x.parts
      from checkpoint_writes x join wanted w
        on w.checkpoint_ns = x.checkpoint_ns and w.checkpoint_id = x.checkpoint_id
     where x.thread_id = source and (x.checkpoint_ns <> '' or x.checkpoint_id <> at);
$$;

-- All checkpoints of a thread, with everything that they need, as they stood at one moment.
create or replace function copy_thread_1(source text, target text) returns void language plpgsql as $$
begin
    perform keep_thread_1(source);  -- a statement of its own: the next one sees what stands when the thread is held
    with referring as (
        insert into artifact_references (thread_id, sha256, label, as_part)
        select target, r.sha256, r.label, r.as_part from artifact_references r where r.thread_id = source
        on conflict do nothing),
    copied as (
        insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
                                 metadata, sealed)
        select target, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.type, c.checkpoint, c.metadata,
               c.sealed
          from checkpoints c where c.thread_id = source
        on conflict do nothing),
    blobs as (
        insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob, parts)
        select target, b.checkpoint_ns, b.channel, b.version, b.type, b.blob, b.parts
          from checkpoint_blobs b where b.thread_id = source
        on conflict do nothing)
    insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob,
                                   parts)
    select target, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.task_path, w.idx, w.channel, w.type, w.blob, w.parts
      from checkpoint_writes w where w.thread_id = source
    on conflict do nothing;
end $$;
