-- Rows that other programs write: id, tenant, aggregatetype, aggregateid, type and payload are all that an
-- INSERT must give. Every other column has a default, or is derived here:
-- * payload is text, so that a driver's string is stored as it is (a bytea would read its backslashes as
--   escapes). Bytes that a driver casts to text arrive as \x and hex digits, and are read as those bytes.
--   payload_bytes has what is no text, or would be taken for bytes.
-- * occurred_at is '' where the sender gave no time: then it is created_at.
-- * partition_key is derived from the row, so that rows of every program share their partitions from the
--   moment of the INSERT; statements write in_partition instead, which is 0 once the row keeps no other of
--   its partition waiting. An event about nothing in particular (aggregateid is null or '') has no
--   partition. Texts that are too long for an event are cut in it: they must fit into the index.
-- The table is written anew. Programs of the version before this one cannot append any more.
alter table semel_outbox rename column payload to payload_bytes;
alter table semel_outbox alter column payload_bytes drop not null;
alter table semel_outbox add column payload text, add column in_partition smallint not null default 1;
update semel_outbox set in_partition = 0 where partition_key is null;

drop index semel_outbox_partition;
alter table semel_outbox drop column partition_key;
alter table semel_outbox
    add column partition_key text collate "C" generated always as (
        case when in_partition = 1 and aggregateid <> ''
            then left(tenant, 64) || chr(31) || left(aggregatetype, 255) || chr(31) || left(aggregateid, 255) end
    ) stored,
    alter column source set default '/outbox',
    alter column content_type set default 'application/json',
    alter column headers set default '{}',
    alter column occurred_at set default '',
    alter column status set default 0,
    alter column attempts set default 0,
    alter column due_at set default (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    alter column created_at set default (extract(epoch from clock_timestamp()) * 1000000)::bigint;
create index semel_outbox_partition on semel_outbox (partition_key, sequence) where partition_key is not null;
