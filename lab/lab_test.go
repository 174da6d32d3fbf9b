//go:build lab

package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// TestScenarios runs scenarios in a guest, each as a subtest. Without LAB_RUN
// (names and sets, separated by spaces) it runs the quick set; -run picks among
// them: go test -tags lab -timeout 30m -v ./lab -run TestScenarios/NAME
func TestScenarios(t *testing.T) {
	words := strings.Fields(envOr("LAB_RUN", "quick"))
	chosen, err := scenarios(words)
	if err != nil {
		t.Fatal(err)
	}
	var session *session
	for _, sc := range chosen {
		t.Run(sc.name, func(t *testing.T) {
			if session == nil {
				if session, err = newSession(context.Background(), "test", chosen, os.Stdout); err != nil {
					t.Fatal(err)
				}
			}
			r := session.run(sc)
			for _, f := range r.faults {
				t.Error(f)
			}
			t.Logf("%.1fs; logs: %s", r.took.Seconds(), r.dir)
		})
	}
	if session != nil {
		session.close()
	}
}

// TestExec runs a program in a guest and passes on how it ended.
func TestExec(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout+time.Minute)
	defer cancel()
	code, err := execInGuest(ctx, []string{"sh", "-c", "test -e /dev/infiniband/uverbs0 && exit 42"}, 30*time.Second)
	if err != nil || code != 42 {
		t.Fatalf("exit code %d, %v", code, err)
	}
}
