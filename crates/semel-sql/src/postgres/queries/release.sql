-- Invariant: only the live grant removes its record. Zero rows means that it was no longer its.
delete from semel_record r
where r.digest = $1
    and r.fence = $2 and r.attempt_id = $3 and r.state = 0 -- guard: fence
