-- Begin to end the leases of an owner that is dead: remove its workers, and report the outboxes that it may have left. The
-- leases are in the lists of all queues, and in that of paused instances; `reap_list` ends those of one list.
-- part: owner
-- answer: the names of all queues
-- reads: queues HASH, unsent ZSET
-- writes: workers ZSET, worker-<worker id> HASH

local function reap(call, part)
  workers.drop_of_owner(call, part[1])
  outbox.report_all(call)
  return queues.names(call)
end
