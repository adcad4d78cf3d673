# Every target sets up what it needs in .venv; nothing has to be installed first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-quick test-oldest lint docs bench clean

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

# For daily work: what is checked without a default fit, and one small training.
QUICK_TESTS := tests/test_architecture.py tests/core/test_problem.py tests/core/test_theta.py \
	tests/losses tests/numerics tests/serialise tests/linear/test_linear.py \
	tests/linear/test_grouped_moments.py tests/finish/test_input_range.py \
	$(addprefix tests/training/test_train.py::,test_key_decides_everything \
		test_bad_input_is_refused_before_training test_divergence_is_an_outcome)

test-quick: $(call stamp,test)
	$(BIN)/python -m pytest $(QUICK_TESTS)

# The lowest versions that pyproject.toml allows, in an environment of their own: what touches
# most of JAX and of the other libraries.
OLDEST := .venv-oldest
OLDEST_EXTRAS := check,checkpoint,data,frame,parquet,report,sklearn
OLDEST_TESTS := tests/core tests/losses tests/linear/test_linear.py \
	$(addprefix tests/training/test_train.py::,test_linear_network_reaches_the_closed_form \
		test_key_decides_everything test_progress_bar test_optimizers_that_look_at_the_loss) \
	tests/training/test_checkpoint.py::test_finished_run_is_not_trained_again \
	$(addprefix tests/models/test_save.py::,test_round_trip_gives_the_same_estimates \
		test_pipelines_load_as_they_were test_transformers_are_saved_by_what_is_public) \
	$(addprefix tests/sklearn/test_sklearn.py::,test_scikit_learn_contract test_is_the_formula) \
	tests/bounds/test_fisher.py::test_deterministic_information \
	tests/likelihood/test_mle.py::test_agrees_with_closed_forms

$(OLDEST)/installed: pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints-oldest.txt -e ".[$(OLDEST_EXTRAS)]"
	touch $@

test-oldest: $(OLDEST)/installed
	$(OLDEST)/bin/python -m pytest $(OLDEST_TESTS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(call stamp,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(call stamp,test)
	$(BIN)/python benchmarks/snr_training.py
	$(BIN)/python benchmarks/linear.py
	$(BIN)/python benchmarks/banks.py
	$(BIN)/python benchmarks/averaging.py
	$(BIN)/python benchmarks/mle.py
	$(BIN)/python benchmarks/numerics.py
	$(BIN)/python benchmarks/certificate.py
	$(BIN)/python benchmarks/intervals.py
	$(BIN)/python benchmarks/information.py
	$(BIN)/python benchmarks/covariance.py
	$(BIN)/python benchmarks/penalty_noise.py --figure runs/penalty-noise.png
	$(BIN)/python benchmarks/cnn.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/default_sizes.py
	$(BIN)/python benchmarks/default_fit.py
	$(BIN)/python benchmarks/fuzz_model_files.py

clean:
	rm -rf $(VENV) $(OLDEST) site runs
