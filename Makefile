# make demo    trains a small GPT with and without capture, and shows what capture made of it
# make test    runs all tests
# make test-fast   some of every package, in two minutes: for the inner loop
# All do all set-up from nothing, in a virtual environment of their own: `.venv`, or `.venv-python3.12` for
# `make test PYTHON=python3.12`. `TORCH` names another build of torch, e.g.
# `make test TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"`.

PYTHON ?= python3
TORCH ?= torch==2.13.0

VENV := .venv$(addprefix -,$(filter-out python3,$(notdir $(PYTHON))))
RUN := $(VENV)/bin/python
SOURCES := pyproject.toml setup.py $(shell find capture -name '*.c' -o -name '*.cpp' -o -name '*.h')

.PHONY: demo test test-capture test-backends test-programs test-operators test-models test-fast test-fast-capture test-fast-backends lint benchmarks
.DELETE_ON_ERROR:

demo: $(VENV)/built
	$(RUN) examples/train_gpt.py --compare

# Two parts side by side, the longest first and the shortest last, so that both processors are busy to the end. Their many processes
# find capture compiled, also where Python is told to write no bytecode.
OPINFO := tests/backends/native/test_opinfo.py
PROGRAMS := $(addprefix tests/,aliasing cpython descriptors distributed functions fuzz mutation paritybench processes sizes training universe)
test: $(VENV)/built
	$(RUN) -m compileall -q capture
	$(MAKE) --keep-going --jobs=2 --output-sync=target test-backends test-capture test-programs test-operators test-models

test-capture: $(VENV)/built
	CAPTURE_STRICT=1 $(RUN) -m pytest -q $(addprefix --ignore=,tests/backends tests/models $(PROGRAMS))

test-programs: $(VENV)/built
	CAPTURE_STRICT=1 $(RUN) -m pytest -q $(PROGRAMS)

test-backends: $(VENV)/built
	CAPTURE_STRICT=1 $(RUN) -m pytest -q tests/backends --ignore=$(OPINFO)

test-operators: $(VENV)/built
	CAPTURE_STRICT=1 $(RUN) -m pytest -q $(OPINFO)

test-models: $(VENV)/built
	CAPTURE_STRICT=1 $(RUN) -m pytest -q tests/models

FAST_CAPTURE := interp refgraph guards reports repository $(addprefix language/test_,containers.py control.py torch_nn.py) \
	api/test_api.py breaks/test_breaks.py breaks/test_continuations.py effects/test_effects.py training/test_gradients.py \
	stale/test_requirements.py values/test_growing_lists.py
LONG := $(addprefix --ignore=tests/,interp/breaks/test_leaving_stand_ins.py guards/test_tree_fuzz.py)
FAST_BACKENDS := csrc operators/test_linearity.py backends/test_registry.py $(addprefix backends/aot/test_,min_cut.py partition.py) \
	$(addprefix backends/native/,end_to_end/test_explain.py lowering/test_lowering.py \
	render/test_render.py $(addprefix test_,evaluate.py fusion.py index.py ops.py plan.py verify.py))
test-fast: $(VENV)/built
	$(MAKE) --jobs=2 --output-sync=target test-fast-capture test-fast-backends

test-fast-capture: $(VENV)/built
	CAPTURE_STRICT=1 $(RUN) -m pytest -q $(addprefix tests/,$(FAST_CAPTURE)) $(LONG)

test-fast-backends: $(VENV)/built
	CAPTURE_STRICT=1 $(RUN) -m pytest -q $(addprefix tests/,$(FAST_BACKENDS))

lint: $(VENV)/built
	$(RUN) -m ruff check .
	$(RUN) -m mypy

benchmarks: $(VENV)/built
	$(RUN) -m benchmarks.dispatch
	$(RUN) -m benchmarks.capture_time
	$(RUN) -m benchmarks.steady
	$(RUN) -m benchmarks.memory
	$(RUN) -m benchmarks.stall
	$(RUN) -m benchmarks.kernels
	$(RUN) -m benchmarks.models build/models.jsonl

# The extension is compiled against the torch that is installed, hence torch first and no build isolation.
$(VENV)/torch:
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip setuptools wheel
	$(RUN) -m pip install --quiet $(TORCH)
	touch $@

$(VENV)/built: $(VENV)/torch $(SOURCES)
	$(RUN) -m pip install --quiet --no-build-isolation --editable '.[test]'
	touch $@
