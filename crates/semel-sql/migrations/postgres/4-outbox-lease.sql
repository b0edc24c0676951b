-- A lease ends at leased_until, a column that no index has: due_at stays as it was when the row was
-- claimed. A row that is leased changes no index then, and where its page has room (the fillfactor leaves
-- it) the server writes the new version beside the old one and nothing else. A row may be claimed when
-- due_at has come and it is not leased, or its lease is over; leased_until is null while it is not leased.
-- Relays of the version before this one know nothing of it: stop them first, or events are published twice.
alter table semel_outbox add column leased_until bigint;
alter table semel_outbox set (fillfactor = 50);
update semel_outbox set leased_until = due_at where status = 1;

-- By what the row lacks, not by its status, which every lease changes.
drop index semel_outbox_dead;
create index semel_outbox_dead on semel_outbox (sequence) where due_at is null and published_at is null;
