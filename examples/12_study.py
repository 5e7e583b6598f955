"""Compare methods over seeds and learning rates, each at its best rate.

What to learn: one training proves little. A study gives every row the same seeds and its own
best learning rate, runs what is missing (call this script twice), and leaves a record: a table,
curves and the command of each run. `hocket sweep study.toml` does the same from a file.
"""

import sys

import hocket_lab

study = hocket_lab.Study(
    name="digits",
    base={"network": "mlp:hidden=[64,64]", "epochs": 3, "optimizer": "SGD:lr=0.1,momentum=0.9"},
    grid=[
        {"method": "bp", "stages": 1},
        {"method": "fdg", "stages": 2},
    ],
    learning_rates=[0.02, 0.05],
    seeds=[0, 1],
    seeds_for_sweep=[0],  # the other seed gets the best rate only
)
# The folder of the record, given on the command line; sweeps/digits without one.
record = hocket_lab.sweep(study, sys.argv[1] if len(sys.argv) > 1 else None)
for row in record.rows:
    loss = row["final"]["test_loss"]
    print(f"{row['row']:28} best rate {row['learning_rate']}: test loss {loss['mean']:.3f}")

# It prints:
#
#   bp, stages 1                 best rate 0.05: test loss 0.136
#   fdg, stages 2                best rate 0.05: test loss 0.180
