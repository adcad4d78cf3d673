# Every target sets up what it needs in .venv; nothing has to be installed first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint docs bench clean

# One stamp per set of extras: a target installs only what it uses; dev has it all.
stamp = $(VENV)/installed-$(if $(wildcard $(VENV)/installed-dev),dev,$(1))

$(VENV)/installed-%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[$*]"
	touch $@

demo: $(call stamp,all)
	$(BIN)/mvue reproduce snr --preset quick --out runs/snr

test: $(call stamp,test)
	$(BIN)/python -m pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(call stamp,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(call stamp,test)
	$(BIN)/python benchmarks/snr_training.py
	$(BIN)/python benchmarks/linear.py
	$(BIN)/python benchmarks/mle.py
	$(BIN)/python benchmarks/covariance.py
	$(BIN)/python benchmarks/penalty_noise.py --figure runs/penalty-noise.png
	$(BIN)/python benchmarks/cnn.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/fuzz_model_files.py

clean:
	rm -rf $(VENV) site runs
