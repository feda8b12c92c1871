-- Standfast, retention: what has ended long ago goes, and what is kept of a long history.
--
-- A thread goes as a whole, in one transaction, with everything that refers to it, but for its audit, which tells of
-- decisions after their thread is gone. It goes only while nobody drives it and nothing of it is open: its row is
-- locked first and looked at afterwards, so that a run that was accepted meanwhile is seen. A row that somebody else
-- has locked is left for the next time. Who copies from a thread holds it by an advisory lock: a driver's fence would
-- take a lock on its row for a stalled writer.
--
-- A history is cut at a checkpoint from which every later one can be read: what DeltaChannels hold is made from the
-- writes since their last snapshot.

create index runs_of_collection on runs (collection_id) where collection_id is not null;
create index collections_age on collections (put_at);
create index collection_documents_of on collection_documents (sha256);
create index documents_age on documents (added_at);

-- Whoever copies from a thread in this transaction: it is not deleted, and its history not cut, meanwhile.
create function keep_thread_1(thread text) returns void language sql as $$
    select pg_advisory_xact_lock_shared(hashtextextended('kept:' || thread, 0));
$$;

-- Take a thread for deletion or cutting, without waiting for anybody.
create function take_unused_1(thread text) returns boolean language plpgsql as $$
begin
    if not pg_try_advisory_xact_lock(hashtextextended('kept:' || thread, 0)) then
        return false;
    end if;
    perform 1 from threads where id = thread and lease_holder is null for update skip locked;
    return found;
end $$;

-- Threads that may have ended long enough ago. The planner puts these two into the statements that read from them.
create function ended_1(in_tenant text, before timestamptz, in_graph text, states text[])
returns table (id text, graph text, state text, updated_at timestamptz) language sql stable as $$
    select t.id, t.graph, r.state, t.updated_at
      from threads t join runs r on r.thread_id = t.id and r.id = t.run_id
     where t.tenant = in_tenant and t.updated_at < before and (in_graph is null or t.graph = in_graph)
       and r.state = any(states);
$$;

-- Threads, of any state if `states` is null, with a history of more than so many checkpoints.
create function long_1(in_tenant text, before timestamptz, in_graph text, states text[], keep integer)
returns table (id text, graph text, state text, updated_at timestamptz) language sql stable as $$
    select t.id, t.graph, coalesce(r.state, 'open'), t.updated_at
      from threads t left join runs r on r.thread_id = t.id and r.id = t.run_id
     where t.tenant = in_tenant and t.updated_at < before and (in_graph is null or t.graph = in_graph)
       and (states is null or r.state = any(states))
       and exists (select from checkpoints c where c.thread_id = t.id and c.checkpoint_ns = ''
                    order by c.checkpoint_id desc offset keep limit 1);
$$;

-- Whether nothing of a thread is open, and nothing has changed since then.
create function at_rest_1(thread text, before timestamptz) returns boolean language sql stable as $$
    select exists (
        select from threads t join runs r on r.thread_id = t.id and r.id = t.run_id
         where t.id = thread and t.updated_at < before and t.lease_holder is null and t.due_at is null
           and r.state in ('succeeded', 'failed', 'cancelled'))
       and not exists (select from runs where thread_id = thread and state in ('queued', 'open', 'needs_attention'))
       and not exists (select from waits where thread_id = thread and state = 'open')
       and not exists (select from approvals where thread_id = thread and state = 'open');
$$;

-- Why a thread is not deleted; null if it may be. A parent may still join its children, and children spend their
-- family's budget: a family goes when all of it may.
create function kept_because_1(thread text, before timestamptz, states text[]) returns text
language plpgsql as $$
begin
    perform 1 from threads t join runs r on r.thread_id = t.id and r.id = t.run_id
      where t.id = thread and r.state = any(states);
    if not found or not at_rest_1(thread, before) then
        return 'in_use';
    end if;
    perform 1 from outbox o join deliveries d on d.seq = o.seq
      where o.thread_id = thread and d.state in ('pending', 'dead');
    if found then
        return 'undelivered';
    end if;
    perform 1 from (
        with recursive above (id) as (
            select r.parent_thread_id from runs r where r.thread_id = thread and r.parent_thread_id is not null
            union
            select r.parent_thread_id from above a join runs r on r.thread_id = a.id
             where r.parent_thread_id is not null),
        below (id) as (
            select r.thread_id from runs r where r.parent_thread_id = thread
            union
            select r.thread_id from below b join runs r on r.parent_thread_id = b.id)
        select id from above union select id from below) as f
      join threads t on t.id = f.id
     where not at_rest_1(f.id, before);
    if found then
        return 'family';
    end if;
    return null;
end $$;

-- Delete those of these threads that may go; of the others, why they are kept.
create function delete_threads_1(ids text[], before timestamptz, states text[])
returns table (thread text, kept text) language plpgsql as $$
begin
    foreach thread in array ids loop
        kept := 'in_use';
        if take_unused_1(thread) then
            kept := kept_because_1(thread, before, states);
        elsif not exists (select from threads t where t.id = thread) then  -- sent again
            kept := null;
        end if;
        if kept is null then
            delete from checkpoint_writes w where w.thread_id = thread;
            delete from checkpoint_blobs b where b.thread_id = thread;
            delete from checkpoints c where c.thread_id = thread;
            delete from flow_slots s where s.thread_id = thread;
            delete from threads t where t.id = thread;
        end if;
        return next;
    end loop;
end $$;

-- The checkpoint at which the history of one namespace may be cut so that `oldest` and all later ones can be read:
-- the newest from which on each DeltaChannel that `oldest` has not in full is either there in full or not there yet.
-- Null if there is none.
create function cut_1(thread text, namespace text, oldest text) returns text language plpgsql stable as $$
declare
    cut text := oldest;
    full_at text;
    delta text;
begin
    for delta in select jsonb_object_keys(c.metadata -> 'counters_since_delta_snapshot') from checkpoints c
                  where c.thread_id = thread and c.checkpoint_ns = namespace and c.checkpoint_id = oldest
    loop
        select c.checkpoint_id into full_at from checkpoints c
         where c.thread_id = thread and c.checkpoint_ns = namespace and c.checkpoint_id <= oldest
           and (not (c.checkpoint -> 'channel_versions') ? delta
                or exists (select from checkpoint_blobs b
                            where b.thread_id = thread and b.checkpoint_ns = namespace and b.channel = delta
                              and b.version = c.checkpoint -> 'channel_versions' ->> delta))
         order by c.checkpoint_id desc limit 1;
        cut := least(cut, full_at);  -- of nothing: null is passed over by least
        if full_at is null then
            return null;
        end if;
    end loop;
    -- What is kept between the two must be readable as well, of every channel.
    return case when cut is not distinct from oldest then cut else cut_1(thread, namespace, cut) end;
end $$;

-- Keep a thread's newest checkpoints, and those that they are read from; how many others were deleted. A subgraph's
-- call goes with the checkpoint that it began from; a subgraph that lives on keeps what it was then.
create function cut_history_1(thread text, keep integer) returns integer language plpgsql as $$
declare
    oldest text;
    cut text;
    namespace text;
    gone integer := 0;
    n integer;
begin
    select c.checkpoint_id into oldest from checkpoints c
     where c.thread_id = thread and c.checkpoint_ns = '' order by c.checkpoint_id desc offset keep - 1 limit 1;
    oldest := cut_1(thread, '', oldest);
    perform 1 from checkpoints c where c.thread_id = thread and c.checkpoint_ns = '' and c.checkpoint_id < oldest;
    if not found then
        return 0;
    end if;
    delete from checkpoints c
     where c.thread_id = thread and strpos(c.checkpoint_ns, ':') > 0 and c.metadata -> 'parents' ->> '' < oldest;
    get diagnostics gone = row_count;
    for namespace in select distinct c.checkpoint_ns from checkpoints c
                      where c.thread_id = thread
                        and (strpos(c.checkpoint_ns, ':') = 0 or c.metadata -> 'parents' ->> '' is null)
    loop  -- of a call that does not say what it began from, the newest
        select max(c.checkpoint_id) into cut from checkpoints c
         where c.thread_id = thread and c.checkpoint_ns = namespace
           and (c.checkpoint_id <= oldest or strpos(namespace, ':') > 0);
        cut := cut_1(thread, namespace, cut);
        delete from checkpoints c
         where c.thread_id = thread and c.checkpoint_ns = namespace and c.checkpoint_id < cut;
        get diagnostics n = row_count;
        gone := gone + n;
        update checkpoints c set parent_checkpoint_id = null
         where c.thread_id = thread and c.checkpoint_ns = namespace and c.checkpoint_id = cut;
    end loop;
    delete from checkpoint_writes w
     where w.thread_id = thread and not exists (
        select from checkpoints c where c.thread_id = thread and c.checkpoint_ns = w.checkpoint_ns
                                    and c.checkpoint_id = w.checkpoint_id);
    delete from checkpoint_blobs b
     where b.thread_id = thread and (b.checkpoint_ns, b.channel, b.version) not in (
        select c.checkpoint_ns, v.key, v.value
          from checkpoints c cross join lateral jsonb_each_text(c.checkpoint -> 'channel_versions') as v
         where c.thread_id = thread);
    perform drop_parts_1(thread);
    return gone;
end $$;

-- Put what DeltaChannels hold at one checkpoint into it, as a snapshot does: it can be read without those before it.
create function fill_checkpoint_1(thread text, at text, channels text[], tag text, blobs bytea[], parts text[])
returns void language sql as $$
    insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob, parts)
    select thread, '', f.channel, c.checkpoint -> 'channel_versions' ->> f.channel, tag, f.blob,
           string_to_array(f.parts, ' ')
      from unnest(channels, blobs, parts) as f (channel, blob, parts)
      join checkpoints c on c.thread_id = thread and c.checkpoint_ns = '' and c.checkpoint_id = at
    on conflict do nothing;
    update checkpoints c
       set checkpoint = jsonb_set(c.checkpoint, '{channel_values}', c.checkpoint -> 'channel_values'
                                  || (select jsonb_object_agg(f, true) from unnest(channels) as f)),
           metadata = jsonb_set(c.metadata, '{counters_since_delta_snapshot}',
                                (c.metadata -> 'counters_since_delta_snapshot') - channels)
     where c.thread_id = thread and c.checkpoint_ns = '' and c.checkpoint_id = at;
$$;

-- Cut the history of a thread that the caller has taken, if it has not changed since then; else null. first_read: its
-- first checkpoint when `blobs` were read; if another cut has come between, they may lack what it took away.
create function cut_thread_1(
    thread text, before timestamptz, keep integer, first_read text, at text, channels text[], tag text, blobs bytea[],
    parts text[])
returns integer language plpgsql as $$
begin
    perform 1 from threads t
      where t.id = thread and t.updated_at < before
        and (first_read is null
             or first_read = (select min(c.checkpoint_id) from checkpoints c
                               where c.thread_id = thread and c.checkpoint_ns = ''));
    if not found then
        return null;
    end if;
    if cardinality(channels) > 0 then
        perform fill_checkpoint_1(thread, at, channels, tag, blobs, parts);
    end if;
    return cut_history_1(thread, keep);
end $$;

-- Delete collections that no run and no schedule is of, and then documents that no collection has. Those that were put
-- within the grace time may be about to be used. Rows are locked before they are looked at again.
create function sweep_documents_1(seconds double precision, most integer) returns integer language plpgsql as $$
declare
    limit_at timestamptz := standfast.now() - make_interval(secs => seconds);
    locked text[];
    n integer;
begin
    locked := array(
        select c.id from collections c
         where c.put_at < limit_at and not exists (select from runs r where r.collection_id = c.id)
           and not exists (select from schedules s where s.collection_id = c.id)
         order by c.put_at limit most for update skip locked);
    delete from collections c where c.id = any(locked)
       and not exists (select from runs r where r.collection_id = c.id)
       and not exists (select from schedules s where s.collection_id = c.id);
    locked := array(
        select d.sha256 from documents d
         where d.added_at < limit_at and not exists (select from collection_documents m where m.sha256 = d.sha256)
         order by d.added_at limit most for update skip locked);
    delete from documents d where d.sha256 = any(locked)
       and not exists (select from collection_documents m where m.sha256 = d.sha256);
    get diagnostics n = row_count;
    return n;
end $$;
