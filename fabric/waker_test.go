package fabric

import (
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pipe is a descriptor to watch and what makes it readable.
func pipe(t *testing.T) (r int, fill func()) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], func() {
		if _, err := unix.Write(p[1], []byte{1}); err != nil {
			t.Error(err)
		}
	}
}

// slept runs Sleep and says when it has ended.
func slept(w *Waker, d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	go func() { w.Sleep(d); close(done) }()
	return done
}

func awake(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("still asleep: %s", what)
	}
}

func asleep(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
		t.Fatalf("awake: %s", what)
	case <-time.After(20 * time.Millisecond):
	}
}

func TestWakerKernel(t *testing.T) {
	w := NewWaker()
	defer w.Close()
	r, fill := pipe(t)
	if err := w.Watch(r); err != nil {
		t.Fatal(err)
	}
	w.Prepare()
	if w.Kernel() {
		t.Error("in the kernel before anything asks for it")
	}
	w.Within(-1)
	if !w.Kernel() || !w.Asleep() {
		t.Error("not in the kernel")
	}
	w.Wake()
	awake(t, "a Wake before the sleep", slept(w, -1))

	w.Prepare()
	w.Within(-1)
	done := slept(w, -1)
	asleep(t, "nothing has happened", done)
	w.Wake()
	awake(t, "a Wake", done)
	if w.Asleep() {
		t.Error("asleep after the sleep")
	}

	w.Prepare()
	w.Within(time.Hour)
	w.Within(time.Millisecond)
	w.Within(time.Minute)
	awake(t, "the shortest time is over", slept(w, -1))

	w.Prepare()
	w.Within(-1)
	awake(t, "the time of Sleep is over", slept(w, time.Millisecond))

	w.Prepare()
	w.Within(-1)
	done = slept(w, -1)
	fill()
	awake(t, "the descriptor is readable", done)
	w.Prepare()
	w.Within(-1)
	awake(t, "it still is", slept(w, -1))

	w.Unwatch(r)
	w.Prepare()
	w.Within(-1)
	done = slept(w, -1)
	asleep(t, "nobody watches it", done)
	w.Wake()
	awake(t, "a Wake after Unwatch", done)
}

// A sleep that a descriptor has ended says so, once.
func TestWakerWoke(t *testing.T) {
	w := NewWaker()
	defer w.Close()
	r, fill := pipe(t)
	if err := w.Watch(r); err != nil {
		t.Fatal(err)
	}
	sleep := func(d time.Duration) {
		w.Prepare()
		w.Within(-1)
		awake(t, "in the end", slept(w, d))
	}
	sleep(time.Millisecond)
	if w.Woke(r) {
		t.Error("a descriptor that is not readable has ended a sleep")
	}
	fill()
	sleep(-1)
	if w.Woke(r+1000) || !w.Woke(r) || w.Woke(r) {
		t.Error("not told, or not once, that the descriptor has ended the sleep")
	}
	sleep(-1)
	w.Unwatch(r)
	sleep(time.Millisecond)
	if w.Woke(r) {
		t.Error("told of the sleep before the last")
	}
}

// armer is a CQ that says how it was armed.
type armer struct {
	CompletionQueue
	on, plain int
}

func (a *armer) Arm() error         { a.plain++; return nil }
func (a *armer) ArmOn(*Waker) error { a.on++; return nil }

// One P is left to those who are awake.
func TestWakerBerths(t *testing.T) {
	n := int(berths.Load())
	var q armer
	ws := make([]*Waker, n+2)
	for i := range ws {
		ws[i] = NewWaker()
		ws[i].Prepare()
		if err := ws[i].Arm(&q); err != nil {
			t.Fatal(err)
		}
	}
	if q.on != n || q.plain != 2 {
		t.Errorf("%d sleep in the kernel and %d do not, of %d berths", q.on, q.plain, n)
	}
	for _, w := range ws {
		w.Prepare() // again, without a sleep between
		w.Cancel()
		w.Cancel()
	}
	if now := int(berths.Load()); now != n {
		t.Errorf("%d berths are left of %d", now, n)
	}
}

// Owners makes berths when they are needed, and not before.
func TestWakerOwners(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	had := runtime.GOMAXPROCS(0)
	before := berths.Load()
	defer func() {
		runtime.GOMAXPROCS(had)
		berths.Store(before)
	}()
	Owners(had + 1)
	if now := runtime.GOMAXPROCS(0); now != had {
		t.Errorf("GOMAXPROCS is %d before anybody sleeps", now)
	}
	var q armer
	for range had + 1 {
		w := NewWaker()
		w.Prepare()
		defer w.Cancel()
		if err := w.Arm(&q); err != nil {
			t.Fatal(err)
		}
	}
	if now := runtime.GOMAXPROCS(0); q.on != had+1 || q.plain != 0 || now != had+2 {
		t.Errorf("%d sleep in the kernel, %d do not, GOMAXPROCS is %d", q.on, q.plain, now)
	}
}

// A Wake that nobody sleeps for is none.
func TestWakerIdle(t *testing.T) {
	w := NewWaker()
	defer w.Close()
	w.Wake()
	select {
	case <-w.C:
		t.Error("a value without a sleep")
	default:
	}
	w.Prepare()
	w.Wake()
	w.Wake()
	<-w.C
	w.Prepare()
	w.Cancel()
	w.Wake()
	select {
	case <-w.C:
		t.Error("a value after Cancel")
	default:
	}
}

// Whatever comes between Prepare and Sleep, no Wake is lost.
func TestWakerNoneLost(t *testing.T) {
	w := NewWaker()
	defer w.Close()
	r, _ := pipe(t)
	if err := w.Watch(r); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	turns := make(chan struct{})
	wg.Go(func() {
		for range turns {
			w.Wake()
		}
	})
	for range 2000 {
		w.Prepare()
		turns <- struct{}{}
		w.Within(-1)
		awake(t, "a Wake at any moment", slept(w, -1))
	}
	close(turns)
	wg.Wait()
}

func TestWakerClosed(t *testing.T) {
	w := NewWaker()
	r, _ := pipe(t)
	if err := w.Watch(r); err != nil {
		t.Fatal(err)
	}
	w.Prepare()
	w.Within(-1)
	w.Close()
	w.Wake() // finds no descriptor of somebody else
	w.Unwatch(r)
	if w.Watch(r) == nil {
		t.Error("a closed Waker watches")
	}
	w.Close()
}

func TestWakerAllocations(t *testing.T) {
	w := NewWaker()
	defer w.Close()
	r, fill := pipe(t)
	if err := w.Watch(r); err != nil {
		t.Fatal(err)
	}
	fill()
	if n := testing.AllocsPerRun(100, func() {
		w.Prepare()
		w.Within(-1)
		w.Sleep(-1)
	}); n != 0 {
		t.Errorf("%v allocations a sleep", n)
	}
}

func TestMillisRoundUp(t *testing.T) {
	for d, want := range map[time.Duration]int{
		forever: -1, 0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000, math.MaxInt64: 1 << 30,
	} {
		if got := millis(d); got != want {
			t.Errorf("millis(%d) = %d, want %d", d, got, want)
		}
	}
}
