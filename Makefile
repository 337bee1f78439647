# Every target sets up what it needs. One build profile throughout, so that HiGHS is compiled once.
CARGO ?= cargo
# All tests are built from one selection of packages: another selection has other features, and compiles the workspace again.
TEST = $(CARGO) test --release --locked --workspace

.PHONY: all setup build demo readme-table test test-long models install-test mpi-test python-test torch-test torch-old-test tested tested-wheel wheel portable kernels gpu-test gpu-bench cluster-test cluster-bench cluster-tuned lint bench bench-library bench-tuning install clean

all: build

setup:
	@.ci/setup

build: setup
	$(CARGO) build --release --locked

# Profile this computer, plan under a sketch, verify, run, check, compare; leaves demo-out/.
demo: build
	target/release/antiphon demo

# The table of the README, from a demo on this computer (which should do nothing else meanwhile).
readme-table: setup
	ANTIPHON_UPDATE=1 $(CARGO) test --release --locked -p antiphon --test end_to_end -- the_demo_leaves

test: setup
	$(TEST) --no-fail-fast

# Faults and fuzzing with more seeds than in `make test`.
test-long: setup
	@.ci/setup mpi || true
	@.ci/setup fortran || true
	@.ci/setup valgrind || true
	@.ci/setup gpu || true
	ANTIPHON_TEST_EFFORT=long $(TEST) --no-fail-fast -- long_
	@$(MAKE) --no-print-directory --keep-going models install-test mpi-test python-test torch-test cluster-test

# The code of lanes and bells in all orders that the memory model of C11 allows, and under Miri where a nightly compiler has it.
models: setup
	$(TEST) --features runtime/model --test models
	@if .ci/setup miri; then \
		MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=target/miri $(CARGO) +nightly miri test --locked -p runtime --lib -- \
			transport::shared::port::lane:: memory::doorbell:: session::buffers:: ; \
	fi

# What `make install` leaves: libantiphon is built alone for it, without the MILP solver.
install-test: setup
	@if .ci/setup install; then $(CARGO) test --release --locked -p plugin --features installed --test install; fi

# Under a real mpirun. Where there is no MPI and none can be installed, it says so and is skipped.
mpi-test: tested
	@if .ci/setup mpi; then \
		$(TEST) --features antiphon/mpi --test end_to_end -- long_mpi_ && \
		plugin/mpi/build.sh mpicc target/tested/libantiphon_mpi.so && \
		plugin/mpi/tests/run.sh mpicc mpirun target/tested/libantiphon_mpi.so; \
	fi
	@if .ci/setup mpich; then \
		ANTIPHON_LIB=target/tested plugin/mpi/build.sh mpicc.mpich target/mpich/libantiphon_mpi.so && \
		ANTIPHON=target/tested/antiphon LD_LIBRARY_PATH=$(CURDIR)/target/tested plugin/mpi/tests/run.sh mpicc.mpich mpirun.mpich target/mpich/libantiphon_mpi.so 2 3; \
	fi

# Copies of the command and of libantiphon as `make test` builds them, in target/tested.
tested: setup
	@$(TEST) --no-run --quiet
	@mkdir -p target/tested
	@cp -p target/release/antiphon target/release/deps/libantiphon.so target/tested

# The wheel for this computer, with the command inside, in target/wheels. MANYLINUX=1 builds one for all Linux systems with glibc 2.28
# or newer, for which it gets the compiler zig from PyPI (400 MB).
wheel: build
	@if .ci/setup python; then python/wheel.sh target/release/antiphon target/wheels; fi

# A wheel with the command that `make test` has built.
tested-wheel: tested
	@if .ci/setup python; then python/wheel.sh target/tested/antiphon target/tested; fi

# That wheel, in fresh virtual environments with and without NumPy. Where there is no Python or no PyPI, it says so and is skipped.
python-test: tested-wheel
	@if [ -x target/python/build/bin/maturin ]; then python/test.sh target/tested; fi

# The same with PyTorch, which it gets from PyPI without CUDA (540 MB).
torch-test: tested-wheel
	@if [ -x target/python/build/bin/maturin ] && .ci/setup torch; then python/torch-test.sh target/tested; fi

# The same with PyTorch 2.8 and with Debian's 1.13. Not part of `make test-long`: it gets 1.2 GB more.
torch-old-test: tested-wheel
	@result=0; for environment in torch-2.8 torch-debian; do \
		if [ -x target/python/build/bin/maturin ] && .ci/setup $$environment; then \
			python/torch-test.sh target/tested $$environment || result=1; fi; done; exit $$result

# libantiphon_nccl.so for all Linux systems with glibc 2.28 or newer, for x86-64 and aarch64, in target/portable. The compiler zig comes
# from PyPI (400 MB).
portable: setup
	@if .ci/setup python; then plugin/nccl/portable.sh target/portable; fi

# The kernels for GPUs, compiled anew by NVRTC from PyPI, which needs no GPU.
kernels: setup
	@if .ci/setup gpu; then ANTIPHON_UPDATE=1 $(CARGO) test --release --locked -p runtime --lib -- long_the_kernels_are; fi

# The tests of the code for GPUs, with the driver, the NCCL and the PyTorch of this computer instead of the fake ones (docs/gpu.md).
gpu-test: setup
	@if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then \
		plugin/nccl/gpu-test.sh; \
	else \
		echo "$@: there is no GPU here; nothing was run"; \
	fi

# Measurements of the kernel on the first GPU of this computer, and of AllReduce over memory that processes map, on all of them.
gpu-bench: setup
	@if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then \
		$(CARGO) bench --locked -p runtime --bench gpu --bench peers; \
	else \
		echo "$@: there is no GPU here; nothing was run"; \
	fi

# Between hosts that are network namespaces with shaped links: needs root, ip and tc, and says so where it skips.
cluster-test: setup
	@.ci/setup cluster || true
	$(TEST) --test cluster -- --nocapture --test-threads 1

# Next to Open MPI and Gloo, in the same hosts and the same run (Debian: libopenmpi-dev openmpi-bin, and python3-torch or .ci/setup torch).
cluster-bench: setup
	@.ci/setup cluster || true
	$(CARGO) bench --locked -p antiphon --bench cluster

# A table that is tuned between unequal hosts, next to the best stock algorithm, ours and theirs: at least 1.2 times as fast in 30 %
# of the cells, and nowhere more than 5 % slower. As root, on a computer that does nothing else.
cluster-tuned: setup
	@.ci/setup cluster || true
	@.ci/setup mpi || true
	@.ci/setup python && .ci/setup torch || true
	ANTIPHON_TEST_EFFORT=quiet $(TEST) --test cluster -- --nocapture --test-threads 1 tuned

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings

bench: setup
	$(CARGO) bench --locked -p antiphon --bench planning
	$(CARGO) bench --locked -p antiphon --bench plans
	$(CARGO) bench --locked -p antiphon --bench execution
	$(CARGO) bench --locked -p antiphon --bench emulation
	$(CARGO) bench --locked -p runtime --bench lanes
	$(CARGO) bench --locked -p antiphon --bench lookup
	@$(MAKE) --no-print-directory bench-library

# What `antiphon tune` loses against an oracle that measures all candidates in launches of its own: mean at most 2 %, 95th percentile
# 5 %, maximum 15 %; then how what a profile predicts ranks plans (Kendall's τ at least 0.8). It takes about twelve minutes, in which the
# computer must do nothing else.
bench-tuning: setup
	ANTIPHON_TEST_EFFORT=quiet $(TEST) --test measured -- tuning_regret --nocapture
	ANTIPHON_TEST_EFFORT=quiet $(TEST) --test measured -- ranking --nocapture

clean:
	$(CARGO) clean
	rm -rf demo-out

# The collectives of libantiphon next to Open MPI's, where there is one.
bench-library: setup
	$(CARGO) build --release --locked -p plugin
	plugin/bench/run.sh include target/release

# The command, and libantiphon for programs in C and other languages (which does not link the solver). PREFIX is /usr/local
# unless said otherwise; DESTDIR is for packagers.
PREFIX ?= /usr/local
install: build
	$(CARGO) build --release --locked -p plugin
	install -D -m 755 target/release/antiphon $(DESTDIR)$(PREFIX)/bin/antiphon
	plugin/install.sh target/release/libantiphon.a $(PREFIX)
	@if command -v mpicc >/dev/null; then \
		ANTIPHON_LIB=$(DESTDIR)$(PREFIX)/lib plugin/mpi/build.sh mpicc $(DESTDIR)$(PREFIX)/lib/libantiphon_mpi.so && \
		echo "installed in $(DESTDIR)$(PREFIX): lib/libantiphon_mpi.so, for the MPI of $$(command -v mpicc)"; \
	fi
