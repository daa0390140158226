"""Sudoku: puzzles made, networks trained, measured and asked.

On a CPU, in three minutes::

    python -m experiments.sudoku train
    python -m experiments.sudoku evaluate
    python -m experiments.sudoku solve puzzle.txt  # or its 81 characters

On a GPU::

    python -m experiments.sudoku generate --train 1000000 --test 1000 --out runs/sudoku/data
    python -m experiments.sudoku cost --recipe candidate
    python -m experiments.sudoku train --recipe candidate --data runs/sudoku/data --minutes 12 \
        --run runs/sudoku/candidate --stop-after 9 --evaluations 20 --eval-puzzles 1500
    python -m experiments.sudoku train ...  # the same once more, until it says that it is finished
    python -m experiments.sudoku evaluate --run runs/sudoku/candidate --data runs/sudoku/data
    python -m experiments.sudoku export --run runs/sudoku/candidate

The last writes ``jaxgnn/pretrained/sudoku.npz``, and beside it the log of the run.
"""
