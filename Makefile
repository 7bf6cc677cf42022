# What a run is made of; change any on the command line: make run SEED=1 RUN=runs/seed-1
GAME = market
PRESET = tiny
SEED = 0
RUN = runs/latest
RESUME =
OVERRIDES =
ARGS =
export GAME PRESET SEED RUN OVERRIDES

PY = .venv/bin/python

.PHONY: help setup run test lab store strip
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile
	@echo 'with: GAME=market PRESET=tiny SEED=0 RUN=runs/latest, RESUME=1 to go on with a stopped run,'
	@echo '      OVERRIDES="steps=20, learning_rate=1e-4" to change fields of the preset (PRESET=auto: by the hardware),'
	@echo '      ARGS="-p STEPS 20" for further notebook parameters, PYTHON=python3.12 to choose the interpreter'

setup: ## create .venv and install requirements.txt (once)
	@sh bootstrap.sh

run: setup ## run notebooks 01-05 into runs/latest and print the result table
	@$(PY) -m helpers.run -p GAME "$$GAME" -p PRESET "$$PRESET" -p SEED "$$SEED" -p RUN "$$RUN" $(if $(OVERRIDES),-p OVERRIDES "$$OVERRIDES") \
		$(if $(filter 1,$(RESUME)),-p RESUME True) $(ARGS)

test: ## ruff, then every test
	@sh bootstrap.sh tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pytest $(ARGS)

lab: setup ## open the notebooks in JupyterLab
	$(PY) -m jupyterlab notebooks $(ARGS)

store: ## put the executed notebooks of a run back into notebooks/
	@cp "$$RUN"/notebooks/*.ipynb notebooks/
	@$(MAKE) --no-print-directory strip

strip: ## take widget state, papermill's marks and machine metadata out of notebooks/, outputs stay
	@$(PY) -m nbstripout --keep-output --keep-count --keep-id --drop-tagged-cells injected-parameters \
		--extra-keys "metadata.widgets metadata.papermill cell.metadata.papermill cell.metadata.execution" notebooks/*.ipynb
