# `make demo` and `make test` do all the set-up on a fresh machine; PYTHON names the interpreter to make it with.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo unit test nightly test-cuda test-floor test-ray test-kernels soak hostile golden golden-check lint docs schema house figures gate noise-models worth certificate shift monitor inspect reproduce bench bench-scale bench-sweep bench-commands bench-start bench-launches bench-gpu bench-large clean architectures zoo

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --upgrade pip  # that of Python 3.11 takes half as long again
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt \
		--editable '.[dev]'  # what is never imported need not be compiled: a minute
	@touch $@

demo: .venv/installed
	$(BIN)/bnuq demo

# Bytecode is kept, also where PYTHONDONTWRITEBYTECODE is set: without it each test process compiles everything again,
# and collecting the tests takes three times as long.
unit test nightly test-cuda test-floor test-ray test-kernels hostile golden golden-check: export PYTHONDONTWRITEBYTECODE :=

# A developer's loop, a minute on two cores: no whole run, process, compiler or real data, and no sampling of networks.
unit: .venv/installed
	$(BIN)/python -m pytest -n auto -m unit

test: .venv/installed
	$(BIN)/python -m pytest -n auto

# On a GPU, in an environment that has torch for it: PYTHON=python3 make test-cuda
test-cuda:
	CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES:-0} $(PYTHON) -m pytest tests/test_cuda.py

nightly: .venv/installed
	$(BIN)/python -m pytest -m nightly

# In an environment of its own, with the lowest version of every direct dependency that pyproject.toml declares, but for
# torch: constraints.txt names the one CPU build. typer then uses names that today's click calls deprecated.
.venv-floor/installed: pyproject.toml constraints.txt tests/builders/floor.py
	$(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python tests/builders/floor.py > .venv-floor/constraints.txt
	.venv-floor/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
		--constraint .venv-floor/constraints.txt --editable '.[dev]'
	@touch $@

test-floor: FLOOR := .venv-floor/bin
test-floor: .venv-floor/installed
	$(FLOOR)/bnuq evaluate sample_configs/quickstart.toml --quiet --out .venv-floor/result.h5
	$(FLOOR)/bnuq check .venv-floor/result.h5 .venv-floor/result.h5
	$(FLOOR)/bnuq report .venv-floor/result.h5 --html .venv-floor/report.html
	$(FLOOR)/python -m pytest -n auto -W "ignore:'click:DeprecationWarning" \
		tests/cli tests/store tests/metrics

# Every hostile file, and genuine ones changed in 14,000 places: minutes.
hostile: .venv/installed
	$(BIN)/python -m pytest tests/hostile -m "hostile or not hostile"

# Random evaluations in processes that are killed at random, compared bitwise: MINUTES=5.
soak: .venv/installed
	PYTHONPATH=.:tests/builders $(BIN)/python tests/builders/disturbed.py $(or $(MINUTES),5)

# On Ray, which is not among the packages of the tests: pip install 'ray>=2.9' into .venv first. A minute or two.
test-ray: .venv/installed
	$(BIN)/python -m pytest tests/runs/test_ray.py -m nightly

# Kernels of Triton in its interpreter, without a GPU. It is 290 MB: pip install triton into .venv first.
test-kernels: .venv/installed
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/sampling/test_kernels.py -m nightly
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/test_cuda.py -k "mask or bitwise or float64_gives"

# The numbers of every sample configuration, compared with those that are committed.
golden-check: .venv/installed
	$(BIN)/python -m pytest -n auto tests/golden -m "nightly or not nightly"

# The same, written again: read their diff before it is committed.
golden: .venv/installed
	$(BIN)/python -m pytest tests/golden -m "nightly or not nightly" --remake

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyrefly check

# The site, in build/site; with its search: python3 -m http.server -d build/site. Its reports are computed once: three
# minutes of CPU time.
.venv-docs/installed: docs/site/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/site/requirements.txt
	@touch $@

docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/installed .venv-docs/installed
	$(BIN)/python docs/make_site.py
	PATH="$(CURDIR)/.venv-docs/bin:$$PATH" .venv-docs/bin/mkdocs build --quiet --strict --config-file build/mkdocs.yml

# The JSON schemas, written again: read their diff before it is committed.
schema: .venv/installed
	$(BIN)/python docs/make_site.py schema

# Measures of the code, printed, and the price list of ARCHITECTURE.md, written again: half a minute.
house: .venv/installed
	$(BIN)/python docs/make_house.py

figures: .venv/installed
	$(BIN)/python docs/make_figures.py

# The index by which networks are recognised. In an environment with timm and torchvision: PYTHON=python3 make architectures
architectures:
	PYTHONPATH=. $(PYTHON) docs/make_architectures.py

# A network of every family, checked against its training-mode forward: half an hour of CPU time. Finished networks are
# kept. In an environment with timm and torchvision: PYTHON=python3 make zoo
zoo:
	PYTHONPATH=. $(PYTHON) docs/make_zoo.py

# What `bnuq check` detects, and its false alarms: an hour of CPU time. If interrupted, it resumes where it stopped.
# ONLY=power: what it says that it can see, and histories, six minutes.
gate: .venv/installed
	$(BIN)/python docs/make_gate.py $(ONLY)

# Every analytic noise model compared with MCBN: half an hour of CPU time. Finished parts are kept.
noise-models: .venv/installed
	$(BIN)/python docs/make_noise_models.py

# Every method compared with the free baselines: half an hour of CPU time. Finished parts are kept.
worth: .venv/installed
	$(BIN)/python docs/make_worth.py

# How often the promise of a certificate is broken; some minutes.
certificate: .venv/installed
	$(BIN)/python docs/make_certificate.py

# False alarms and power of the monitor: about seven minutes of CPU time.
monitor: .venv/installed
	$(BIN)/python docs/make_monitor.py

# How networks follow a shift of their inputs, reduced: a quarter of an hour of CPU time.
shift: .venv/installed
	$(BIN)/python docs/make_shift.py

# The statistics of real networks, and the effect of correcting them: a quarter of an hour of CPU time.
inspect: .venv/installed
	$(BIN)/python docs/make_inspect.py

# The published experiments: about three hours of CPU time. If interrupted, it resumes where it stopped.
reproduce: .venv/installed
	$(BIN)/python -m experiments uci --sets all --data-root $(BNUQ_TEST_DATA) --out docs/uci.h5 --markdown docs/measured/uci.md
	$(BIN)/python -m experiments uci --method mnf,vi --data-root $(BNUQ_TEST_DATA) --out docs/uci-learned.h5 --markdown docs/measured/uci-learned.md
	$(BIN)/python -m experiments toy --figures docs/measured --out docs/toy.h5
	$(BIN)/python -m experiments batch-size --data-root $(BNUQ_TEST_DATA) --figures docs/measured --out docs/batch-size.h5
	$(BIN)/python -m experiments stochastic-normalization --sets fashion-mnist --epochs 4 --limit 1000 --data-root $(BNUQ_TEST_DATA) --figures docs/measured --out docs/stochastic-normalization.h5
	$(BIN)/python -m experiments bn-in-vi --data-root $(BNUQ_TEST_DATA) --figures docs/measured --out docs/bn-in-vi.h5
	$(BIN)/python -m experiments uci --method mnf --sets kin8nm,power,protein --data-root $(BNUQ_TEST_DATA) --out docs/uci-mnf.h5
	$(BIN)/python -m experiments uci --by-size --sets boston,energy,kin8nm,power,yacht --data-root $(BNUQ_TEST_DATA) --figures docs/measured --out docs/uci-sizes.h5
	$(BIN)/python -m experiments resnet32 --samples 32 --limit 150 --data-root $(BNUQ_TEST_DATA) --out docs/resnet32.h5
	$(BIN)/python -m experiments precise-bn --limit 1000 --data-root $(BNUQ_TEST_DATA) --out docs/precise-bn.h5
	$(BIN)/python -m experiments precise-bn --images 60000 --epochs 10 --limit 1000 --data-root $(BNUQ_TEST_DATA) --out docs/precise-bn-8192.h5
	$(BIN)/python -m experiments stochastic-normalization --sets fashion-mnist --images 2000 --epochs 24 --width 8 -T 10 --limit 1000 --data-root $(BNUQ_TEST_DATA) --out docs/normalization-family.h5
	$(BIN)/python -m experiments normalization-batch --epochs 3 --seeds 2 -T 10 --limit 300 --data-root $(BNUQ_TEST_DATA) --out docs/normalization-batch.h5
	$(BIN)/python -m experiments bn-in-vi --noise dropout --images 2000 --epochs 12 --limit 500 --seeds 3 -T 10 --data-root $(BNUQ_TEST_DATA) --out docs/bn-in-dropout.h5
	$(BIN)/python -m experiments batch-size --full --architectures small_resnet --batch-sizes 32,256,2048 --images 4096 --limit 500 --draw-sets 2 --train-points 100 --data-root $(BNUQ_TEST_DATA) --out docs/batch-size-schedule.h5
	$(BIN)/python -m experiments batch-size --architectures small_vgg --batch-sizes 32,64,128,256,512,1024,2048 --no-equal-steps --seeds 1 --images 4096 --epochs 3 --limit 100 -T 5 --draw-sets 2 --train-points 50 --data-root $(BNUQ_TEST_DATA) --out docs/batch-size-fashion-mnist.h5
	$(BIN)/python -m experiments batch-size --set cifar10 --batch-sizes 32,64,128,256,512 --no-equal-steps --images 2048 --epochs 3 --seeds 2 --limit 100 -T 5 --draw-sets 2 --train-points 50 --data-root $(BNUQ_TEST_DATA) --out docs/batch-size-cifar10.h5
	$(BIN)/python -m experiments optimum-over-n --seeds 3 --steps 100 -T 4 --draw-sets 2 --batch-sizes 16,64,256,1024,2048 --train-points 60 --limit 60 --data-root $(BNUQ_TEST_DATA) --out docs/optimum-over-n.h5
	$(BIN)/python docs/make_figures.py stochastic-normalization
	$(BIN)/python docs/make_figures.py bn-in-vi
	$(BIN)/python docs/make_figures.py uci
	$(BIN)/python docs/make_figures.py uci-learned
	$(BIN)/python docs/make_figures.py batch-size
	$(BIN)/python docs/make_papers.py store $(addsuffix .h5,$(addprefix docs/,uci uci-learned uci-mnf uci-sizes batch-size-schedule batch-size-fashion-mnist batch-size-cifar10 optimum-over-n stochastic-normalization normalization-family normalization-batch bn-in-vi bn-in-dropout resnet32 precise-bn precise-bn-8192))
	$(BIN)/python docs/make_papers.py

# An environment of its own: TorchUncertainty and what it needs. BENCH="--quick", BENCH="--only resnet32": see benchmarks/.
.venv-bench/installed: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement benchmarks/requirements.txt
	@touch $@

bench: .venv-bench/installed
	.venv-bench/bin/python benchmarks/run.py $(BENCH)
	.venv-bench/bin/python docs/make_figures.py speed

# One process, two and, where it is installed, Ray: five minutes. SCALE="--samples 8", SCALE="--only local". Then by which
# powers of n and T memory and CPU time grow.
bench-scale: .venv/installed
	$(BIN)/python benchmarks/scale.py $(SCALE)
	$(BIN)/python benchmarks/large.py --only n=10000 --only n=100000 --only T=64

# The adaptive sweep of three networks under five seeds against the full grid: half an hour. SWEEP="--only diabetes_mlp"
bench-sweep: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sweep.py $(SWEEP)

# CPU time of small commands in units of a bare `import torch`: two minutes. Another checkout beside: START="--bnuq PATH"
bench-start: .venv/installed
	$(BIN)/python benchmarks/start.py $(START)

# Kernels and waits of small runs on the fake accelerator: five minutes. LAUNCHES="--bnuq PATH --docs": before and after
bench-launches: .venv/installed
	$(BIN)/python benchmarks/launches.py $(LAUNCHES)

# `bnuq evaluate` against what a practitioner would write: an hour. COMMANDS="--only quickstart --rounds 1": a minute
bench-commands: .venv-bench/installed
	.venv-bench/bin/python benchmarks/commands.py $(COMMANDS)

# Up to a million points, and 1,000 classes: peak memory and CPU time. A quarter of an hour; LARGE="--quick": a minute.
bench-large: .venv/installed
	$(BIN)/python benchmarks/large.py $(LARGE)

# What only a GPU can tell, in nine minutes, in an environment that has torch for it: PYTHON=python3 make bench-gpu
bench-gpu:
	$(PYTHON) benchmarks/gpu.py --device cuda

clean:
	rm -rf .venv .venv-bench .venv-docs .venv-floor build .pytest_cache .ruff_cache .hypothesis
