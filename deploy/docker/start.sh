#!/bin/sh
# The image's `flyball`, with the solver's machine code where numba reads it: where it may write.
# Without a place for the copy the planner starts all the same, and compiles at its first plan.
if [ ! -e "$NUMBA_CACHE_DIR" ]; then
    cp -R /opt/flyball/numba "$NUMBA_CACHE_DIR" 2>/dev/null
fi
exec flyball "$@"
