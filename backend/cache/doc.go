// Package cache is a coherent cache in memory over any backend.
//
// A read that is in memory is answered at once, by Lend without a copy; any
// other goes to the medium and may fill pages. A write goes through: when it
// completes the medium has it, so the cache holds nothing that a crash could
// lose, and Flush and FUA mean what they mean below. What a read gives is what
// the medium held at some moment between its start and its end, as if there
// were no cache.
//
// # Who finds, who decides
//
// Ristretto finds pages and decides which stay (TinyLFU). It promises nothing
// about order: a Set is applied later or dropped, of two the older can win, and
// what was deleted can come back for a moment. So nothing here relies on it.
// Coherence is carried by what is found. Each slot, memory for one page, has a
// descriptor with the number of its page and a stamp; whoever finds a slot takes
// a reference and then checks both, and what does not pass is a miss.
//
// The stamp is two version words as they were before the page was read from the
// medium. A word counts the operations that change the medium: each adds to it
// before the medium sees the operation and again when it has ended, with
// whatever result, and in its low bits stands how many are in flight. One word
// is shared by few pages (2 to 4 words for each page of the cache, found by a
// hash), the other by a region, a 1024th of the device, for ranges so long that
// marking their pages would take an owner's time. A page is the medium's content
// as long as its words are its stamp:
//
//	write begins          word differs: not found any more
//	write in flight       writers are not 0: what is read is not kept
//	write ends            word differs again: what was read meanwhile is not kept
//	resize, foreign write all regions' words change: nothing is found any more
//
// Two pages that share a word make each other stale, which costs a miss.
//
// # The life of a page
//
//	            take                       publish: stamp still current,
//	free slots ------> private: ref 0      then ref 1, then into the index
//	    ^              stamp, then read   ---------------+
//	    |                  | error, overtaken,           v
//	    |                  | no longer current     published: never written
//	    +------------------+                      |  found: ref+1, check,
//	    |                                         |  copied or lent, ref-1
//	    |   last reference                        v
//	    +------------------------------ replaced or left the index: ref-1
//
// While a slot is private its reference count is 0, and a reference can only be
// added to one that is not: a reader that found the slot a moment ago under its
// former page gets none. Once it is published its memory does not change until
// the last reference is gone, so what is lent stays as it is through writes and
// evictions. That is also why a slot whose page has changed is never updated
// but replaced.
//
// # Why each check is where it is
//
//   - A stamp is taken before the read of the medium is submitted, and not
//     while writers are in flight: then no operation that began before has an
//     effect still to come, and any that begins later changes the word.
//   - The stamp is compared again before the page is published. That saves room;
//     it is the check of the reader that counts.
//   - The reader checks under its reference, or the slot could become another
//     page's between check and use.
//   - A read of several pages takes all references before the first check. Each
//     page was in memory before that moment and is current after it, so all
//     together are the medium's content at that moment.
//   - A write publishes its own data only if it was alone: its word must have
//     had it as the only writer when it began and must be exactly one end
//     further when it has ended. Of two that overlap nobody knows whose data
//     the medium has.
//   - A failed write ends like any other. Part of it may be on the medium.
//   - A fill that fails publishes nothing; and if it read more than was asked
//     for, the read is tried as it was asked, for the fault may lie beside it.
//   - Hits are refused beyond the size last seen, and a page that is not wholly
//     within the device is not cached.
//
// # Who owns what
//
//	queue      its owner: requests, read-ahead, streams, counts. No locks.
//	slots      reference counts, and free lists without locks, by all queues
//	versions   atomic words, by all queues
//	index      ristretto, with locks of its own that are held for a map access;
//	           its entries, which lead to slots, have reference counts too
//	door       atomic words, by all queues
//	watch      one goroutine a device: looks at the file, sweeps stale pages
//	sizes      atomic; who sees another size marks all regions
//
// The data path takes no lock of ours, allocates nothing and starts no
// goroutine. Of ristretto's, Get allocates a stripe once in 64, and Set for each
// page that enters; so pages enter seldom (see below), and a page that changes
// keeps its entry. Set never blocks. Del and Wait can: only the watch deletes,
// and nobody waits but Close. When slots run out because ristretto's goroutine
// has not come to run, reads pass to the medium until it has; an eighth of the
// pages, at most 1024, is kept for that and for what is lent or read ahead.
//
// # What is kept
//
// With TinyLFU a page is offered to ristretto at its second miss in a while
// (the door remembers the first), or at the first while there is room, and
// ristretto takes it if it is read more often than what it would push out.
// Reads and writes of more than 16 pages neither fill nor refill; more than 256
// are not looked for. A written page is kept if it was in memory, which is what
// tells that it is read.
//
// A queue notices sequential readers. Far into a run that meets nothing known,
// only one page of 256 is looked for; a scan thus costs a few nanoseconds a
// read, and the second one over the same range is noticed and looked for in
// full. Read-ahead grows with the run up to Options.ReadAhead, holds its pages
// outside the index and is given up when less than half of them are used.
//
// # Fairness
//
// Each backend has a cache and a budget of its own, so one namespace cannot
// take the memory of another. Within one, queues share all.
//
// # Others who write to the medium
//
// The cache is coherent for operations that pass through it. Another program
// that writes to the same file is the operator's fault; a file that a daemon
// has open is locked, which keeps other daemons off, and nothing else. What can
// be noticed is: at each Refresh and every 5 s the size and time of a regular
// file are compared with the last look. Another size is a resize. Another time,
// with no write of ours begun or in flight since, is another program's write:
// there is a warning, and all pages are stale. Beside writes of ours it is not
// noticed, for they change the time as well, nor is it on block devices, whose
// times say nothing. A size that changes and changes back between two looks is
// not seen either, unless the time tells.
package cache
