# The two commands of README.md are `make demo` and `make test`.
GO      ?= go
BIN     := bin
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X github.com/nvmf-go/nvmf/internal/version.Version=$(VERSION)

.PHONY: build deps demo test unit vet race lab lab-verbs lab-interop soak compare bench curves figures lint clean

build: deps
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

deps:
	@scripts/deps build

# The main job, shown: the daemon serves a host that discovers, connects,
# writes, reads back and disconnects.
demo: build
	@scripts/demo

# Everything. CI runs this.
test: unit lab

# Tests with real sockets can starve beside others on two cores. What fails is
# shown, and has to pass when it runs once more (what passed is cached).
AGAIN := { echo "once more: what failed above has to pass now"; false; }

unit: deps vet
	@scripts/deps peers
	$(GO) test -count=1 ./internal/archtest
	$(GO) test ./... || $(AGAIN) || $(GO) test -p 1 ./...
	$(MAKE) race

vet:
	$(GO) vet ./...
	$(GO) vet -tags lab ./lab/...
	CGO_ENABLED=0 $(GO) build -o /dev/null ./...

race:
	$(GO) test -race -short ./... || $(AGAIN) || $(GO) test -p 1 -race -short ./...

# The quick scenarios against a stock kernel in a VM; `make soak` has the long ones.
# The guest's processor is emulated: on a machine that is busy otherwise it can
# starve until a time-out strikes. What failed is said, and has to pass on a
# fresh boot.
lab: build
	@scripts/deps lab
	lab/run quick || { \
		failed=$$(awk '$$1 == "FAIL" { print $$2 }' lab/out/latest/summary.txt); \
		[ -n "$$failed" ] && echo "once more, on a fresh boot:" $$failed && lab/run $$failed; }

# rdma-core's rping and perftest on the kernel's rxe and siw against the built-in RNICs.
lab-interop: build
	@scripts/deps lab
	$(GO) test -tags lab -count=1 -timeout 30m -exec "$(CURDIR)/lab/run exec --timeout 14m -- ip netns exec peer" -run Interop ./fabric/soft/roce ./fabric/soft/iwarp

soak: build lab-verbs lab-interop
	lab/run soak

# The conformance suite of fabric over libibverbs and the kernel's rxe.
lab-verbs: build
	@scripts/deps lab
	NVMF_NEED_RDMA=1 $(GO) test -count=1 -timeout 15m -exec "$(CURDIR)/lab/run exec --timeout 14m --" ./fabric/verbs

# Both software RNICs side by side on this machine, one table.
compare: build
	@scripts/compare

# Every layer and the whole path, against the last committed results.
bench: build
	@scripts/deps bench
	@scripts/bench

# What target and host cost as work grows, measured and drawn: docs/perf.
curves: build
	@scripts/curves

# Puts what make bench and make curves have measured into docs/PERFORMANCE.md.
figures:
	@scripts/figures

GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

lint:
	$(GO) run $(GOLANGCI) run ./...
	$(GO) run $(STATICCHECK) ./...

clean:
	rm -rf $(BIN) lab/out
