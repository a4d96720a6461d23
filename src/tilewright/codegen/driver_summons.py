"""The text of what the native driver does about a worker that has lost its core in the middle of a part.

The caller waits for that part, and only the worker can finish it. A core that others keep busy comes back after
milliseconds. The caller's own is free while it waits, so it summons the worker there: it narrows the worker's affinity
to that core, and gives it up. The processor time of the worker's thread tells whether it runs.

A worker that finds itself on that core, as one may that wakes up where all cores are busy, leaves it if it has no part
in hand: there the two would only take turns.

Affinities are restored when a worker leaves the job. Each side raises its flag before it narrows the affinity, and
looks at the other's after it has read one: so nobody takes a narrowed affinity for the one to be restored.
"""

TEXT = """\
; Nanoseconds that a thread has run so far; -1 if that is not known.
define internal i64 @ran(i64 %thread) {{
  %at = alloca [2 x i64], align 16
  %word = ptrtoint ptr %at to i64
  %not = xor i64 %thread, -1
  %shifted = shl i64 %not, 3
  %wide = or i64 %shifted, 6 ; the clock of one thread, as the scheduler counts
  %clock = and i64 %wide, 4294967295
  %failed = call i64 @syscall(i64 {clock_gettime}, i64 %clock, i64 %word, i64 0)
  %seconds = load i64, ptr %at, align 16
  %rest_at = getelementptr i8, ptr %at, i64 8
  %rest = load i64, ptr %rest_at, align 8
  %whole = mul i64 %seconds, 1000000000
  %total = add i64 %whole, %rest
  %is_known = icmp eq i64 %failed, 0
  %found = select i1 %is_known, i64 %total, i64 -1
  ret i64 %found
}}

define internal void @sleep_a_little() {{
  %at = alloca [2 x i64], align 16
  %rest_at = getelementptr i8, ptr %at, i64 8
  store i64 0, ptr %at, align 16
  store i64 {nap}, ptr %rest_at, align 8
  %word = ptrtoint ptr %at to i64
  %r = call i64 @syscall(i64 {nanosleep}, i64 %word, i64 0, i64 0)
  ret void
}}

; The core that this thread runs on.
define internal i64 @core() {{
  {core}
}}

; Let workers know the core of this thread, which is the caller's, so that they leave it; unless it is patient.
define internal void @tell_core(ptr %team) {{
entry:
  %patience_at = getelementptr i8, ptr %team, i64 {patience}
  %patience = load i64, ptr %patience_at, align 8
  %is_patient = icmp eq i64 %patience, 0
  br i1 %is_patient, label %done, label %tell
tell:
  %here = call i64 @core()
  %core_at = getelementptr i8, ptr %team, i64 {core_of}
  store atomic i64 %here, ptr %core_at monotonic, align 8
  br label %done
done:
  ret void
}}

; The byte of a core in a set of cores, and its bit there.
define internal {{ ptr, i8 }} @bit(ptr %cores, i64 %core) {{
  %byte = lshr i64 %core, 3
  %at = getelementptr i8, ptr %cores, i64 %byte
  %place = and i64 %core, 7
  %narrow = trunc i64 %place to i8
  %value = shl i8 1, %narrow
  %pair = insertvalue {{ ptr, i8 }} poison, ptr %at, 0
  %both = insertvalue {{ ptr, i8 }} %pair, i8 %value, 1
  ret {{ ptr, i8 }} %both
}}

; Keep where a worker may run, unless %flag says that somebody has narrowed that: the bytes that are known.
define internal i64 @keep_cores(ptr %status, ptr %flag) {{
entry:
  %found = alloca [{cores_bytes} x i8], align 16
  %length_at = getelementptr i8, ptr %status, i64 {status_length}
  %known = load i64, ptr %length_at, align 8
  %thread_at = getelementptr i8, ptr %status, i64 {status_thread}
  %thread = load i64, ptr %thread_at, align 8
  %word = ptrtoint ptr %found to i64
  store [{cores_words} x i64] zeroinitializer, ptr %found, align 16
  %got = call i64 @syscall(i64 {get_affinity}, i64 %thread, i64 {cores_bytes}, i64 %word)
  %is_narrow = load atomic i64, ptr %flag seq_cst, align 8
  %is_whole = icmp eq i64 %is_narrow, 0
  %is_there = icmp sgt i64 %got, 0
  %is_good = and i1 %is_whole, %is_there
  br i1 %is_good, label %keep, label %done
keep:
  %cores = getelementptr i8, ptr %status, i64 {status_cores}
  %all = load [{cores_words} x i64], ptr %found, align 16
  store [{cores_words} x i64] %all, ptr %cores, align 8
  store i64 %got, ptr %length_at, align 8
  br label %done
done:
  %length = phi i64 [ %known, %entry ], [ %got, %keep ]
  ret i64 %length
}}

; Let a worker run on the core of this thread, and nowhere else, until it leaves.
define internal void @summon(ptr %team, ptr %status) {{
entry:
  %one = alloca [{cores_bytes} x i8], align 16
  call void @tell_core(ptr %team)
  %core_at = getelementptr i8, ptr %team, i64 {core_of}
  %here = load atomic i64, ptr %core_at monotonic, align 8
  %is_small = icmp ult i64 %here, {cores_bits}
  br i1 %is_small, label %ask, label %done
ask:
  %left_at = getelementptr i8, ptr %status, i64 {status_left_core}
  %length = call i64 @keep_cores(ptr %status, ptr %left_at)
  %is_known = icmp sgt i64 %length, 0
  br i1 %is_known, label %check, label %done
check:
  %cores = getelementptr i8, ptr %status, i64 {status_cores}
  %own = call {{ ptr, i8 }} @bit(ptr %cores, i64 %here)
  %own_at = extractvalue {{ ptr, i8 }} %own, 0
  %value = extractvalue {{ ptr, i8 }} %own, 1
  %bits = load i8, ptr %own_at, align 1
  %common = and i8 %bits, %value
  %is_allowed = icmp ne i8 %common, 0
  br i1 %is_allowed, label %move, label %done
move:
  store [{cores_words} x i64] zeroinitializer, ptr %one, align 16
  %only = call {{ ptr, i8 }} @bit(ptr %one, i64 %here)
  %only_at = extractvalue {{ ptr, i8 }} %only, 0
  store i8 %value, ptr %only_at, align 1
  %summons = getelementptr i8, ptr %status, i64 {status_summoned}
  store atomic i64 1, ptr %summons seq_cst, align 8
  %thread_at = getelementptr i8, ptr %status, i64 {status_thread}
  %thread = load i64, ptr %thread_at, align 8
  %word = ptrtoint ptr %one to i64
  %r = call i64 @syscall(i64 {set_affinity}, i64 %thread, i64 %length, i64 %word)
  br label %done
done:
  ret void
}}

; Summon the workers that are waited for, which is from state %least on, and have not run since this was last done. One
; that has been summoned needs this core.
define internal void @look_after(ptr %team, i64 %least) {{
entry:
  %statuses_at = getelementptr i8, ptr %team, i64 {statuses}
  %statuses = load ptr, ptr %statuses_at, align 8
  %workers_at = getelementptr i8, ptr %team, i64 {workers}
  %workers = load i64, ptr %workers_at, align 8
  br label %next
next:
  %w = phi i64 [ 1, %entry ], [ %w1, %after ]
  %more = icmp ult i64 %w, %workers
  br i1 %more, label %look, label %done
look:
  %at = mul i64 %w, {line}
  %status = getelementptr i8, ptr %statuses, i64 %at
  %state_at = getelementptr i8, ptr %status, i64 {status_state}
  %state = load atomic i64, ptr %state_at acquire, align 8
  %is_awaited = icmp uge i64 %state, %least
  br i1 %is_awaited, label %measure, label %after
measure:
  %thread_at = getelementptr i8, ptr %status, i64 {status_thread}
  %thread = load i64, ptr %thread_at, align 8
  %now = call i64 @ran(i64 %thread)
  %seen_at = getelementptr i8, ptr %status, i64 {status_seen}
  %seen = load i64, ptr %seen_at, align 8
  store i64 %now, ptr %seen_at, align 8
  %is_same = icmp eq i64 %now, %seen
  %is_known = icmp sge i64 %now, 0
  %stands = and i1 %is_same, %is_known
  br i1 %stands, label %act, label %after
act:
  %summons = getelementptr i8, ptr %status, i64 {status_summoned}
  %summoned = load atomic i64, ptr %summons seq_cst, align 8
  %is_here = icmp ne i64 %summoned, 0
  br i1 %is_here, label %sleep, label %call
sleep:
  call void @sleep_a_little()
  br label %after
call:
  call void @summon(ptr %team, ptr %status)
  br label %after
after:
  %w1 = add i64 %w, 1
  br label %next
done:
  ret void
}}

; A worker without a part leaves the caller's core, if it may run elsewhere.
define internal void @leave_core(ptr %team, ptr %status) {{
entry:
  %others = alloca [{cores_bytes} x i8], align 16
  %core_at = getelementptr i8, ptr %team, i64 {core_of}
  %caller = load atomic i64, ptr %core_at monotonic, align 8
  %is_unknown = icmp eq i64 %caller, -1
  br i1 %is_unknown, label %done, label %compare
compare:
  %here = call i64 @core()
  %is_apart = icmp ne i64 %here, %caller
  br i1 %is_apart, label %done, label %look
look:
  %summons = getelementptr i8, ptr %status, i64 {status_summoned}
  %left_at = getelementptr i8, ptr %status, i64 {status_left_core}
  %summoned = load atomic i64, ptr %summons seq_cst, align 8
  %left = load atomic i64, ptr %left_at monotonic, align 8
  %number = add i64 %here, 1
  %is_called = icmp ne i64 %summoned, 0
  %is_stuck = icmp eq i64 %left, %number ; it has tried before
  %is_small = icmp ult i64 %here, {cores_bits}
  %is_new = xor i1 %is_stuck, true
  %is_due = or i1 %is_called, %is_new
  %goes = and i1 %is_due, %is_small
  br i1 %goes, label %ask, label %done
ask:
  %length = call i64 @keep_cores(ptr %status, ptr %summons)
  %is_known = icmp sgt i64 %length, 0
  br i1 %is_known, label %leave, label %done
leave:
  store atomic i64 %number, ptr %left_at seq_cst, align 8
  store atomic i64 0, ptr %summons seq_cst, align 8
  %cores = getelementptr i8, ptr %status, i64 {status_cores}
  %all = load [{cores_words} x i64], ptr %cores, align 8
  store [{cores_words} x i64] %all, ptr %others, align 16
  %own = call {{ ptr, i8 }} @bit(ptr %others, i64 %here)
  %own_at = extractvalue {{ ptr, i8 }} %own, 0
  %value = extractvalue {{ ptr, i8 }} %own, 1
  %bits = load i8, ptr %own_at, align 1
  %inverse = xor i8 %value, -1
  %rest = and i8 %bits, %inverse
  store i8 %rest, ptr %own_at, align 1
  %word = ptrtoint ptr %others to i64
  %r = call i64 @syscall(i64 {set_affinity}, i64 0, i64 %length, i64 %word)
  br label %done
done:
  ret void
}}

; A worker whose affinity was narrowed in a job may run anywhere again.
define internal void @restore_cores(ptr %status) {{
entry:
  %summons = getelementptr i8, ptr %status, i64 {status_summoned}
  %left_at = getelementptr i8, ptr %status, i64 {status_left_core}
  %summoned = load atomic i64, ptr %summons seq_cst, align 8
  %left = load atomic i64, ptr %left_at monotonic, align 8
  %either = or i64 %summoned, %left
  %none = icmp eq i64 %either, 0
  br i1 %none, label %done, label %free
free:
  %length_at = getelementptr i8, ptr %status, i64 {status_length}
  %length = load i64, ptr %length_at, align 8
  %cores = getelementptr i8, ptr %status, i64 {status_cores}
  %word = ptrtoint ptr %cores to i64
  %r = call i64 @syscall(i64 {set_affinity}, i64 0, i64 %length, i64 %word)
  store atomic i64 0, ptr %summons seq_cst, align 8
  store atomic i64 0, ptr %left_at seq_cst, align 8
  br label %done
done:
  ret void
}}
"""
