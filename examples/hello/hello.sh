#!/bin/sh
# The smallest job: says who and where it is, and leaves a file to download.
set -eu

echo "Hello from learner $LEARNER_ID of $NUM_LEARNERS (job $WEFT_JOB_ID, attempt $WEFT_ATTEMPT)"
for second in 1 2 3; do
    echo "working ... $second of 3"
    sleep "${HELLO_SLEEP:-0.2}"
done
echo "Hello, Weft" > "$RESULT_DIR/hello.txt"
echo "wrote hello.txt to the results"
