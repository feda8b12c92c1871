-- Standfast, the outbox: messages that are written with the state that causes them, and their deliveries.
--
-- A message is a row of the transaction that makes it true. In that same transaction each channel that is known and
-- wants the topic gets a delivery, so the writer needs no configuration, and one channel that is down holds up no
-- other. A channel's row holds its name and topics; where it leads, and its secrets, only the dispatcher knows.
--
-- Order: of the deliveries of one channel and key only one is due at a time, the oldest; the others have due_at
-- 'infinity' until it is delivered or dead. Writers of one key exclude each other until their commit, so that the
-- numbers of a key's messages are in the order of their commits.
--
-- A claim is a due_at that lies ahead: one whose dispatcher dies comes back by itself. The end of an attempt is
-- recorded under the claim's own mark only: a dispatcher that slept through its time changes nothing.
--
-- Both tables and the channels are global: dispatchers look for what is due over all threads.

create table channels (
    name          text primary key,
    topics        text[] not null,               -- whole topics, or beginnings that end with '*'
    registered_at timestamptz not null default standfast.now()
);

create table outbox (
    seq        bigint generated always as identity primary key,
    id         text not null unique,             -- made before it is sent: the same one again is the same message
    tenant     text not null default 'default',
    thread_id  text references threads (id) on delete cascade,
    run_id     uuid,
    topic      text not null,
    key        text not null,                    -- messages of one key are delivered in order
    payload    bytea not null,
    created_at timestamptz not null default standfast.now()
);
create index outbox_of_thread on outbox (thread_id, seq);
create index outbox_age on outbox (created_at);

create table deliveries (
    seq          bigint not null references outbox (seq) on delete cascade,
    channel      text not null,
    key          text not null,
    state        text not null default 'pending' check (state in ('pending', 'delivered', 'dead')),
    attempts     integer not null default 0,
    due_at       timestamptz not null,
    claim        uuid,                           -- of the attempt under way
    failure      text,                           -- of the latest attempt
    ended_at     timestamptz,
    primary key (seq, channel)
);
create index deliveries_due on deliveries (channel, due_at, seq) where state = 'pending';
create index deliveries_of_key on deliveries (channel, key, seq) where state = 'pending';
create index deliveries_dead on deliveries (seq) where state = 'dead';

create function lock_key_1(in_key text) returns void language sql as $$
    select pg_advisory_xact_lock(hashtextextended('outbox:' || in_key, 0));
$$;

-- Whether one of these topics, of which some end in a star, is this one.
create function wants_1(topics text[], topic text) returns boolean language sql immutable as $$
    select exists (select 1 from unnest(topics) as t where topic = t or t like '%*' and starts_with(topic, left(t, -1)));
$$;

-- Write messages, in this order. One that is there already is left as it is.
create function send_messages_1(
    in_thread text, in_run uuid, ids text[], topics text[], keys text[], payloads bytea[])
returns void language plpgsql as $$
declare
    m record;
    new_seq bigint;
begin
    perform 1 from forks f where f.thread_id = in_thread and not f.effects;
    if found then  -- a message is an effect
        return;
    end if;
    for m in select distinct k from unnest(keys) as k order by k loop
        perform lock_key_1(m.k);
    end loop;
    for m in select * from unnest(ids, topics, keys, payloads) with ordinality as u (id, topic, key, payload, at)
              order by at
    loop
        insert into outbox (id, tenant, thread_id, run_id, topic, key, payload)
        values (m.id, coalesce((select tenant from threads where id = in_thread), 'default'), in_thread, in_run,
                m.topic, m.key, m.payload)
        on conflict (id) do nothing
        returning seq into new_seq;
        continue when not found;
        insert into deliveries (seq, channel, key, due_at)
        select new_seq, c.name, m.key,
               case when exists (select 1 from deliveries d
                                  where d.channel = c.name and d.key = m.key and d.state = 'pending')
                    then 'infinity' else standfast.now() end
          from channels c
         where wants_1(c.topics, m.topic);
    end loop;
end $$;

-- The end of a run, under the name of the state that it really came to; not even written if no channel wants it.
create function send_run_end_1(in_thread text, in_run uuid, in_id text, in_payload bytea) returns void
language sql as $$
    select send_messages_1(in_thread, in_run, array[in_id], array['run.' || state], array[in_thread], array[in_payload])
      from runs where thread_id = in_thread and id = in_run
       and exists (select 1 from channels c where wants_1(c.topics, 'run.' || state));
$$;

-- Take what is due, each delivery for one dispatcher, for so many seconds.
create function claim_deliveries_1(in_channels text[], in_claim uuid, seconds double precision, most integer)
returns table (seq bigint, channel text, attempt integer, claimed_at timestamptz, id text, thread_id text, run_id uuid,
               topic text, key text, payload bytea, created_at timestamptz)
language sql as $$
    with due as (
        -- For each channel by itself: however much waits, no more is read than is taken.
        select d.seq, d.channel
          from unnest(in_channels) as of (channel)
         cross join lateral (
            select x.seq, x.channel, x.due_at from deliveries x
             where x.state = 'pending' and x.channel = of.channel and x.due_at <= (select standfast.now())
             order by x.due_at, x.seq limit most for update skip locked) as d
         order by d.due_at, d.seq limit most),
    claimed as (
        update deliveries d
           set claim = in_claim, attempts = d.attempts + 1, due_at = standfast.now() + make_interval(secs => seconds)
          from due where d.seq = due.seq and d.channel = due.channel
        returning d.seq, d.channel, d.attempts)
    select c.seq, c.channel, c.attempts, standfast.now(), o.id, o.thread_id, o.run_id, o.topic, o.key, o.payload,
           o.created_at
      from claimed c join outbox o on o.seq = c.seq order by c.seq;
$$;

-- The oldest of those that wait behind an ended one is due now.
create function release_next_1(in_channel text, in_key text) returns void language sql as $$
    update deliveries set due_at = standfast.now()
     where due_at = 'infinity' and (seq, channel) = (
        select d.seq, d.channel from deliveries d
         where d.channel = in_channel and d.key = in_key and d.state = 'pending' order by d.seq limit 1);
$$;

-- new_state: delivered, dead, or pending, which is tried again after a delay. False if the claim has passed on.
create function finish_delivery_1(
    in_seq bigint, in_channel text, in_key text, in_claim uuid, new_state text, in_failure text,
    delay double precision)
returns boolean language plpgsql as $$
begin
    perform lock_key_1(in_key);
    update deliveries
       set state = new_state, claim = null, failure = in_failure,
           due_at = standfast.now() + make_interval(secs => delay),
           ended_at = case when new_state <> 'pending' then standfast.now() end
     where seq = in_seq and channel = in_channel and state = 'pending' and claim = in_claim;
    if not found then
        return false;
    end if;
    if new_state <> 'pending' then
        perform release_next_1(in_channel, in_key);
    end if;
    return true;
end $$;

-- Send dead ones again, with a fresh number of attempts: each behind whichever of its key is under way.
create function resend_1(in_ids text[], in_channel text) returns integer language plpgsql as $$
declare
    d record;
    resent integer := 0;
begin
    for d in select x.seq, x.channel, x.key from deliveries x join outbox o on o.seq = x.seq
              where x.state = 'dead' and (in_ids is null or o.id = any(in_ids))
                and (in_channel is null or x.channel = in_channel)
              order by x.key, x.seq
    loop
        perform lock_key_1(d.key);
        update deliveries x
           set state = 'pending', attempts = 0, ended_at = null, failure = null,
               due_at = case when exists (select 1 from deliveries p
                                           where p.channel = d.channel and p.key = d.key and p.state = 'pending')
                             then 'infinity' else standfast.now() end
         where x.seq = d.seq and x.channel = d.channel and x.state = 'dead';
        resent := resent + case when found then 1 else 0 end;
    end loop;
    return resent;
end $$;
