r"""Sudoku: generation of puzzles; training, evaluation and use of networks.

On a CPU, in three minutes::

    python -m experiments.sudoku solve puzzle.txt  # or its 81 characters
    python -m experiments.sudoku evaluate  # the weights that come with the library, as above
    python -m experiments.sudoku train
    python -m experiments.sudoku evaluate --run runs/sudoku/tiny

On a GPU, in calls of less than ten minutes::

    python -m experiments.sudoku cost --recipe candidate --batches 128 256 512
    python -m experiments.sudoku train --recipe candidate --test 1000 --minutes 12 --stop-after 7 \
        --evaluations 20 --eval-puzzles 1500
    python -m experiments.sudoku train ...  # repeat until it says that it is finished
    python -m experiments.sudoku evaluate --run runs/sudoku/candidate --test 1000 --batch-size 1000
    python -m experiments.sudoku export --run runs/sudoku/candidate \
        --out jaxgnn/pretrained/sudoku.npz

Training that starts from weights, on harder puzzles and with later states::

    python -m experiments.sudoku train --recipe harder --initial jaxgnn/pretrained/sudoku.npz \
        --minutes 25 --stop-after 8 --test 1000 --evaluations 20 --eval-puzzles 1500

A million puzzles are generated in seconds on 16 cores at the start of each call, always the same.
The last command writes the file that comes with the library. Beside it, it writes the log of the
run with the results of the previous command.
"""
