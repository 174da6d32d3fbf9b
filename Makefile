# nvmf: the two commands of README.md are `make demo` and `make test`.
GO ?= go
BIN := bin

.PHONY: build
build:
	$(GO) build -o $(BIN)/ ./cmd/...
