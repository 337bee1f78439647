# Every target sets up what it needs. One build profile throughout, so that HiGHS is compiled once.
CARGO ?= cargo

.PHONY: all setup build demo test test-long mpi-test cluster-test cluster-bench lint bench install clean

all: build

setup:
	@.ci/setup

build: setup
	$(CARGO) build --release --locked

# Profile this computer, plan under a sketch, verify, run, check, compare; leaves demo-out/.
demo: build
	target/release/antiphon demo

test: setup
	$(CARGO) test --release --locked --workspace

# Faults and fuzzing with more seeds than `make test` takes time for.
test-long: setup
	ANTIPHON_TEST_EFFORT=long $(CARGO) test --release --locked --workspace -- long_
	@$(MAKE) --no-print-directory mpi-test cluster-test

# A sweep under mpirun, where there is an MPI to build with and to run (Debian: libopenmpi-dev openmpi-bin libclang-dev).
mpi-test: setup
	@if ! command -v mpirun >/dev/null 2>&1 || ! echo '#include <mpi.h>' | mpicc -fsyntax-only -xc - 2>/dev/null; then \
		echo "mpi-test: skipped, because there is no mpirun, or no mpicc with its headers"; \
	else \
		$(CARGO) test --release --locked -p antiphon --features mpi --test end_to_end -- long_mpi_; \
	fi

# Between hosts that are network namespaces with shaped links: needs root, ip and tc, and says so where it skips.
cluster-test: setup
	@.ci/setup cluster
	$(CARGO) test --release --locked --workspace --test cluster -- --nocapture --test-threads 1

# Next to Open MPI and Gloo, in the same hosts and the same run (Debian: libopenmpi-dev openmpi-bin python3-torch).
cluster-bench: setup
	@.ci/setup cluster
	$(CARGO) bench --locked -p antiphon --bench cluster

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings

bench: setup
	$(CARGO) bench --locked -p antiphon --bench planning
	$(CARGO) bench --locked -p antiphon --bench plans
	$(CARGO) bench --locked -p antiphon --bench execution
	$(CARGO) bench --locked -p antiphon --bench emulation
	$(CARGO) bench --locked -p runtime --bench lanes

install: setup
	$(CARGO) install --locked --path .

clean:
	$(CARGO) clean
	rm -rf demo-out
