.PHONY: help build run certify test check fmt vet lint race integration bench bench-peer parity engine dashboards
GO ?= go
BIN := bin/xragent

help:        ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

build:       ## Build bin/xragent: one static binary, no cgo
	CGO_ENABLED=0 $(GO) build -o $(BIN) ./cmd/xragent

run: build   ## The main job: phantoms, Rad-CoT, SFT, GRPO, export, evaluation (about ten minutes on 2 cores)
	$(BIN) run configs/quickstart.yaml

test:        ## All Go tests with the race detector
	$(GO) vet ./...
	$(GO) test -race -timeout 20m ./...

check: fmt vet test ## Everything that changes nothing and must hold before a commit

fmt:         ## Fail if a file is not formatted
	@test -z "$$(gofmt -l $$(git ls-files '*.go') | tee /dev/stderr)"

vet:         ## go vet
	$(GO) vet ./...

lint:        ## golangci-lint, where it is installed
	golangci-lint run

integration: ## The built program under kills, with external workers, and scraped by Debian's Prometheus
	scripts/integration.sh

certify: build ## Examine the phantom world before anything is trained on it; writes docs/certificate.json
	$(BIN) phantom certify --out docs/certificate.json

bench:       ## Benchmarks, as ratios within one run
	$(GO) test -run '^$$' -bench . -benchtime 1s ./internal/simd ./policy/embedded ./reward ./rollout/queue

bench-peer:  ## Training and decoding against PyTorch and transformers, by turns (PEER=pattern for some); needs uv
	learner/bench/run.sh

parity:      ## Losses, model, tokenizer, template and images against verl, TRL and transformers; needs uv (some GB of Python packages) and npm
	learner/parity/run.sh

engine:      ## A run's export (EXPORT=folder) in a vLLM server against ours; needs XRAGENT_VLLM, an interpreter with vLLM
	learner/engine/run.sh $(EXPORT)

dashboards:  ## Regenerate the Grafana dashboard and alert rules from the metric registry
	$(GO) test ./web -run TestGeneratedFiles -update
