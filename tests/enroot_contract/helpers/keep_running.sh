#!/bin/bash
# A batch shell as jobs have it: the command in the background, waited for.
"$@" &
wait
