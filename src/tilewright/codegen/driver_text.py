"""The text of the native driver, with the names that `driver.py` fills in. That module describes it."""

TEXT = """\
target triple = "{triple}"

define internal void @pause() {{
  call void asm sideeffect "{pause}", "~{{memory}}"()
  ret void
}}

define internal i64 @syscall(i64 %number, i64 %a, i64 %b, i64 %c) {{
  %r = call i64 asm sideeffect "{syscall}", "{constraints}"(i64 %number, i64 %a, i64 %b, i64 %c, i64 0)
  ret i64 %r
}}

; One round of waiting: %spin counts the rounds so far.
define internal void @wait_a_little(i64 %spin) {{
  call void asm sideeffect "{pause}", "~{{memory}}"()
  %long = icmp uge i64 %spin, {spins_before_yield}
  %low = and i64 %spin, {yield_mask}
  %turn = icmp eq i64 %low, 0
  %give = and i1 %long, %turn
  br i1 %give, label %yield, label %done
yield:
  %r = call i64 @syscall(i64 {sched_yield}, i64 0, i64 0, i64 0)
  br label %done
done:
  ret void
}}

define internal ptr @status(ptr %team, i64 %worker) {{
  %statuses_at = getelementptr i8, ptr %team, i64 {statuses}
  %statuses = load ptr, ptr %statuses_at, align 8
  %at = mul i64 %worker, {line}
  %status = getelementptr i8, ptr %statuses, i64 %at
  ret ptr %status
}}

; Now and then, look after the workers that this thread waits for.
define internal void @look_now_and_then(ptr %team, i64 %spin, i64 %least) {{
entry:
  %patience_at = getelementptr i8, ptr %team, i64 {patience}
  %patience = load i64, ptr %patience_at, align 8
  %never = icmp eq i64 %patience, 0
  br i1 %never, label %done, label %count
count:
  %rest = urem i64 %spin, %patience
  %last = sub i64 %patience, 1
  %is_time = icmp eq i64 %rest, %last
  br i1 %is_time, label %look, label %done
look:
  call void @look_after(ptr %team, i64 %least)
  br label %done
done:
  ret void
}}

; Wait until the door is closed and nobody is inside.
define internal void @await_nobody(ptr %team) {{
entry:
  %door = getelementptr i8, ptr %team, i64 {door}
  br label %look
look:
  %spin = phi i64 [ 0, %entry ], [ %next, %again ]
  %now = load atomic i32, ptr %door acquire, align 4
  %there = icmp eq i32 %now, 0
  br i1 %there, label %done, label %again
again:
  call void @wait_a_little(i64 %spin)
  call void @look_now_and_then(ptr %team, i64 %spin, i64 {is_inside})
  %next = add i64 %spin, 1
  br label %look
done:
  ret void
}}

; Wait until %due parts are finished; %mine are by now, without this worker's having said so.
define internal void @meet(ptr %team, ptr %status, i1 %is_first, i64 %mine, i64 %due) {{
entry:
  %finished = getelementptr i8, ptr %team, i64 {finished}
  %none = icmp eq i64 %mine, 0
  br i1 %none, label %look, label %tell
tell:
  %f = atomicrmw add ptr %finished, i64 %mine release
  %state = getelementptr i8, ptr %status, i64 {status_state}
  store atomic i64 {is_inside}, ptr %state monotonic, align 8
  br label %look
look:
  %spin = phi i64 [ 0, %entry ], [ 0, %tell ], [ %next, %first ], [ %next, %other ], [ %next, %apart ]
  %now = load atomic i64, ptr %finished acquire, align 8
  %there = icmp uge i64 %now, %due
  br i1 %there, label %done, label %again
again:
  call void @wait_a_little(i64 %spin)
  %next = add i64 %spin, 1
  br i1 %is_first, label %first, label %other
first:
  call void @look_now_and_then(ptr %team, i64 %spin, i64 {has_parts})
  br label %look
other:
  %low = and i64 %spin, {leave_mask}
  %turn = icmp eq i64 %low, {leave_mask}
  br i1 %turn, label %apart, label %look
apart:
  call void @leave_core(ptr %team, ptr %status)
  br label %look
done:
  ret void
}}

define internal void @wake(ptr %team) {{
  %sleepers = getelementptr i8, ptr %team, i64 {sleepers}
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %none = icmp eq i32 %asleep, 0
  br i1 %none, label %done, label %call
call:
  ; who wakes up may be put on this core
  call void @tell_core(ptr %team)
  %generation = getelementptr i8, ptr %team, i64 {generation}
  %word = ptrtoint ptr %generation to i64
  %r = call i64 @syscall(i64 {futex}, i64 %word, i64 {futex_wake}, i64 {everybody})
  br label %done
done:
  ret void
}}

; The parts %from ... %to - 1 of a call.
define internal void @run_parts(ptr %fn, ptr %args, i64 %from, i64 %to) {{
entry:
  br label %next
next:
  %part = phi i64 [ %from, %entry ], [ %part1, %body ]
  %more = icmp slt i64 %part, %to
  br i1 %more, label %body, label %done
body:
  call void %fn(ptr %args, i64 %part)
  %part1 = add i64 %part, 1
  br label %next
done:
  ret void
}}

; A kernel whose parts are calls of others, of one part each.
define void @tw_each(ptr %rows, i64 %n) {{
  %at = mul i64 %n, {call_bytes}
  %record = getelementptr i8, ptr %rows, i64 %at
  %fn_at = getelementptr i8, ptr %record, i64 {call_fn}
  %args_at = getelementptr i8, ptr %record, i64 {call_args}
  %first_at = getelementptr i8, ptr %record, i64 {call_first}
  %fn = load ptr, ptr %fn_at, align 8
  %args = load ptr, ptr %args_at, align 8
  %first = load i64, ptr %first_at, align 8
  call void %fn(ptr %args, i64 %first)
  ret void
}}

define void @tw_run(ptr %calls, i64 %n) {{
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %call ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %call, label %done
call:
  %at = mul i64 %i, {call_bytes}
  %record = getelementptr i8, ptr %calls, i64 %at
  %fn_at = getelementptr i8, ptr %record, i64 {call_fn}
  %args_at = getelementptr i8, ptr %record, i64 {call_args}
  %first_at = getelementptr i8, ptr %record, i64 {call_first}
  %parts_at = getelementptr i8, ptr %record, i64 {call_parts}
  %fn = load ptr, ptr %fn_at, align 8
  %args = load ptr, ptr %args_at, align 8
  %first = load i64, ptr %first_at, align 8
  %parts = load i64, ptr %parts_at, align 8
  %end = add i64 %first, %parts
  call void @run_parts(ptr %fn, ptr %args, i64 %first, i64 %end)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}}

; What a worker does in a job: %due counts the parts of the calls up to here, %mine those that it has run since it last
; said so.
define internal void @run_shared(ptr %team, ptr %calls, i64 %n, i64 %worker, i64 %workers) {{
entry:
  %records = getelementptr i8, ptr %team, i64 {records}
  %is_first = icmp eq i64 %worker, 0
  %status = call ptr @status(ptr %team, i64 %worker)
  %state = getelementptr i8, ptr %status, i64 {status_state}
  %summons = getelementptr i8, ptr %status, i64 {status_summoned}
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %number, %after ]
  %due0 = phi i64 [ 0, %entry ], [ %due, %after ]
  %mine0 = phi i64 [ 0, %entry ], [ %mine_after, %after ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %call, label %done
call:
  %at = mul i64 %i, {call_bytes}
  %record = getelementptr i8, ptr %calls, i64 %at
  %fn_at = getelementptr i8, ptr %record, i64 {call_fn}
  %args_at = getelementptr i8, ptr %record, i64 {call_args}
  %first_at = getelementptr i8, ptr %record, i64 {call_first}
  %parts_at = getelementptr i8, ptr %record, i64 {call_parts}
  %claims_at = getelementptr i8, ptr %record, i64 {call_claims}
  %chunk_at = getelementptr i8, ptr %record, i64 {call_chunk}
  %barrier_at = getelementptr i8, ptr %record, i64 {call_barrier}
  %fn = load ptr, ptr %fn_at, align 8
  %args = load ptr, ptr %args_at, align 8
  %first = load i64, ptr %first_at, align 8
  %parts = load i64, ptr %parts_at, align 8
  %end = add i64 %first, %parts
  %due = add i64 %due0, %parts
  %number = add i64 %i, 1
  %is_single = icmp ule i64 %parts, 1
  br i1 %is_single, label %single, label %several
single:
  br i1 %is_first, label %one, label %tail
one:
  call void @run_parts(ptr %fn, ptr %args, i64 %first, i64 %end)
  %mine_one = add i64 %mine0, %parts
  br label %tail
several:
  %claims = load i64, ptr %claims_at, align 8
  %chunk = load i64, ptr %chunk_at, align 8
  br label %range
range:
  %k = phi i64 [ 0, %several ], [ %k1, %empty ]
  %mine1 = phi i64 [ %mine0, %several ], [ %mine2, %empty ]
  %v0 = add i64 %worker, %k
  %wraps = icmp uge i64 %v0, %workers
  %v1 = sub i64 %v0, %workers
  %v = select i1 %wraps, i64 %v1, i64 %v0
  %v_end = add i64 %v, 1
  %lo_times = mul i64 %v, %claims
  %hi_times = mul i64 %v_end, %claims
  %lo_all = udiv i64 %lo_times, %workers
  %hi_all = udiv i64 %hi_times, %workers
  %is_own = icmp eq i64 %k, 0
  %word_at = mul i64 %v, {line}
  %v_record = getelementptr i8, ptr %records, i64 %word_at
  %word = getelementptr i8, ptr %v_record, i64 {record_left}
  br label %free
free: ; of parts, but perhaps not on a core of its own
  %mine2 = phi i64 [ %mine1, %range ], [ %mine2, %take ], [ %mine3, %work ]
  %summoned = load atomic i64, ptr %summons monotonic, align 8
  %is_summoned = icmp ne i64 %summoned, 0
  br i1 %is_summoned, label %leave, label %look
leave:
  call void @leave_core(ptr %team, ptr %status)
  br label %look
look:
  %old = load atomic i64, ptr %word monotonic, align 8
  %call_of = lshr i64 %old, {call_shift}
  %is_over = icmp ugt i64 %call_of, %number
  br i1 %is_over, label %tail, label %open
open:
  %begun = icmp eq i64 %call_of, %number
  %lo_shifted = lshr i64 %old, {lo_shift}
  %lo_left = and i64 %lo_shifted, {mask}
  %hi_left = and i64 %old, {mask}
  %lo = select i1 %begun, i64 %lo_left, i64 %lo_all
  %hi = select i1 %begun, i64 %hi_left, i64 %hi_all
  %has = icmp ult i64 %lo, %hi
  br i1 %has, label %take, label %empty
take:
  %lo1 = add i64 %lo, 1
  %hi1 = sub i64 %hi, 1
  %claim = select i1 %is_own, i64 %lo, i64 %hi1
  %lo_new = select i1 %is_own, i64 %lo1, i64 %lo
  %hi_new = select i1 %is_own, i64 %hi, i64 %hi1
  %n_bits = shl i64 %number, {call_shift}
  %lo_bits = shl i64 %lo_new, {lo_shift}
  %bits = or i64 %n_bits, %lo_bits
  %new = or i64 %bits, %hi_new
  %pair = cmpxchg ptr %word, i64 %old, i64 %new monotonic monotonic
  %got = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %got, label %work, label %free
work:
  %skipped = mul i64 %claim, %chunk
  %from = add i64 %first, %skipped
  %to_full = add i64 %from, %chunk
  %is_short = icmp sgt i64 %to_full, %end
  %to = select i1 %is_short, i64 %end, i64 %to_full
  store atomic i64 {has_parts}, ptr %state monotonic, align 8
  call void @run_parts(ptr %fn, ptr %args, i64 %from, i64 %to)
  %ran = sub i64 %to, %from
  %mine3 = add i64 %mine2, %ran
  br label %free
empty:
  %k1 = add i64 %k, 1
  %others = icmp ult i64 %k1, %workers
  br i1 %others, label %range, label %tail
tail:
  %mine = phi i64 [ %mine0, %single ], [ %mine_one, %one ], [ %mine2, %look ], [ %mine2, %empty ]
  %barrier = load i64, ptr %barrier_at, align 8
  %is_wanted = icmp ne i64 %barrier, 0
  br i1 %is_wanted, label %together, label %after
together:
  call void @meet(ptr %team, ptr %status, i1 %is_first, i64 %mine, i64 %due)
  br label %after
after:
  %mine_after = phi i64 [ %mine, %tail ], [ 0, %together ]
  br label %next
done:
  ret void
}}

; Nobody has claimed or finished anything yet.
define internal void @reset(ptr %team, i64 %workers) {{
entry:
  %finished = getelementptr i8, ptr %team, i64 {finished}
  %records = getelementptr i8, ptr %team, i64 {records}
  store atomic i64 0, ptr %finished monotonic, align 8
  br label %next
next:
  %w = phi i64 [ 0, %entry ], [ %w1, %clear ]
  %more = icmp ult i64 %w, %workers
  br i1 %more, label %clear, label %done
clear:
  %at = mul i64 %w, {line}
  %record = getelementptr i8, ptr %records, i64 %at
  %word = getelementptr i8, ptr %record, i64 {record_left}
  store atomic i64 0, ptr %word monotonic, align 8
  %w1 = add i64 %w, 1
  br label %next
done:
  ret void
}}

define i64 @tw_start(ptr %job) {{
entry:
  %team_at = getelementptr i8, ptr %job, i64 {job_team}
  %calls_at = getelementptr i8, ptr %job, i64 {job_calls}
  %n_at = getelementptr i8, ptr %job, i64 {job_n}
  %team = load ptr, ptr %team_at, align 8
  %calls = load ptr, ptr %calls_at, align 8
  %n = load i64, ptr %n_at, align 8
  %serial = icmp eq ptr %team, null
  br i1 %serial, label %alone, label %look
look:
  %running_at = getelementptr i8, ptr %team, i64 {running}
  %running = load atomic i32, ptr %running_at acquire, align 4
  %stopped = icmp eq i32 %running, 0
  br i1 %stopped, label %alone, label %take
take:
  %busy = getelementptr i8, ptr %team, i64 {busy}
  %pair = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %taken = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %taken, label %publish, label %alone
publish:
  %team_calls = getelementptr i8, ptr %team, i64 {calls}
  %team_n = getelementptr i8, ptr %team, i64 {n}
  %workers_at = getelementptr i8, ptr %team, i64 {workers}
  %door = getelementptr i8, ptr %team, i64 {door}
  %generation = getelementptr i8, ptr %team, i64 {generation}
  %workers = load i64, ptr %workers_at, align 8
  store ptr %calls, ptr %team_calls, align 8
  store i64 %n, ptr %team_n, align 8
  call void @reset(ptr %team, i64 %workers)
  %core_at = getelementptr i8, ptr %team, i64 {core_of}
  store atomic i64 -1, ptr %core_at monotonic, align 8
  %d1 = atomicrmw add ptr %door, i32 {is_open} release
  %g = atomicrmw add ptr %generation, i32 1 seq_cst
  call void @wake(ptr %team)
  call void @run_shared(ptr %team, ptr %calls, i64 %n, i64 0, i64 %workers)
  %d2 = atomicrmw sub ptr %door, i32 {is_open} acquire
  call void @await_nobody(ptr %team)
  store atomic i32 0, ptr %busy release, align 4
  ret i64 0
alone:
  %missing = phi i64 [ 0, %entry ], [ 1, %look ], [ 0, %take ]
  call void @tw_run(ptr %calls, i64 %n)
  ret i64 %missing
}}

define ptr @tw_worker(ptr %record) {{
entry:
  %team_at = getelementptr i8, ptr %record, i64 {record_team}
  %worker_at = getelementptr i8, ptr %record, i64 {record_worker}
  %team = load ptr, ptr %team_at, align 8
  %worker = load i64, ptr %worker_at, align 8
  %generation = getelementptr i8, ptr %team, i64 {generation}
  %word = ptrtoint ptr %generation to i64
  %sleepers = getelementptr i8, ptr %team, i64 {sleepers}
  %door = getelementptr i8, ptr %team, i64 {door}
  %workers_at = getelementptr i8, ptr %team, i64 {workers}
  %spin_at = getelementptr i8, ptr %team, i64 {spin}
  %quit_at = getelementptr i8, ptr %team, i64 {quit}
  %calls_at = getelementptr i8, ptr %team, i64 {calls}
  %n_at = getelementptr i8, ptr %team, i64 {n}
  %status = call ptr @status(ptr %team, i64 %worker)
  %state = getelementptr i8, ptr %status, i64 {status_state}
  %thread = call i64 @syscall(i64 {gettid}, i64 0, i64 0, i64 0)
  %thread_at = getelementptr i8, ptr %status, i64 {status_thread}
  store i64 %thread, ptr %thread_at, align 8
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %g, %out ]
  %limit = load atomic i64, ptr %spin_at monotonic, align 8
  br label %look
look:
  %spin = phi i64 [ 0, %idle ], [ %spin1, %again ]
  %g1 = load atomic i32, ptr %generation acquire, align 4
  %called = icmp ne i32 %g1, %seen
  br i1 %called, label %called_up, label %patience
patience:
  %patient = icmp ult i64 %spin, %limit
  br i1 %patient, label %again, label %lie_down
again:
  call void @pause()
  %spin1 = add i64 %spin, 1
  br label %look
lie_down:
  %s1 = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %sleep
sleep:
  %seen64 = zext i32 %seen to i64
  %r = call i64 @syscall(i64 {futex}, i64 %word, i64 {futex_wait}, i64 %seen64)
  %g2 = load atomic i32, ptr %generation seq_cst, align 4
  %spurious = icmp eq i32 %g2, %seen
  br i1 %spurious, label %sleep, label %get_up
get_up:
  %s2 = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %called_up
called_up:
  %g = phi i32 [ %g1, %look ], [ %g2, %get_up ]
  %quit = load atomic i32, ptr %quit_at acquire, align 4
  %leave = icmp ne i32 %quit, 0
  br i1 %leave, label %gone, label %enter
enter:
  %d1 = atomicrmw add ptr %door, i32 1 acquire
  %is_open = icmp uge i32 %d1, {is_open}
  br i1 %is_open, label %work, label %out
work:
  %calls = load ptr, ptr %calls_at, align 8
  %n = load i64, ptr %n_at, align 8
  %workers = load i64, ptr %workers_at, align 8
  call void @restore_cores(ptr %status)
  store atomic i64 {is_inside}, ptr %state monotonic, align 8
  call void @leave_core(ptr %team, ptr %status)
  call void @run_shared(ptr %team, ptr %calls, i64 %n, i64 %worker, i64 %workers)
  store atomic i64 0, ptr %state monotonic, align 8
  call void @restore_cores(ptr %status)
  br label %out
out:
  %d2 = atomicrmw sub ptr %door, i32 1 release
  br label %idle
gone:
  ret ptr null
}}

define void @tw_stop(ptr %team) {{
entry:
  %busy = getelementptr i8, ptr %team, i64 {busy}
  br label %take
take:
  %spin = phi i64 [ 0, %entry ], [ %spin1, %again ]
  %pair = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %taken = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %taken, label %tell, label %again
again:
  call void @wait_a_little(i64 %spin)
  %spin1 = add i64 %spin, 1
  br label %take
tell:
  ; busy stays taken: whoever comes late runs alone
  %running_at = getelementptr i8, ptr %team, i64 {running}
  %quit_at = getelementptr i8, ptr %team, i64 {quit}
  %generation = getelementptr i8, ptr %team, i64 {generation}
  store atomic i32 0, ptr %running_at release, align 4
  store atomic i32 1, ptr %quit_at release, align 4
  %g = atomicrmw add ptr %generation, i32 1 seq_cst
  call void @wake(ptr %team)
  ret void
}}

define void @tw_pause(i64 %n) {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %done
body:
  call void @pause()
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""
