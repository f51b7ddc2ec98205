#!/bin/sh
# Stands in for an agent: each attempt has its own idea of the repair.
set -e
head='package median

import "sort"

// Of gives the median of a list, which it leaves as it is; 0 of an empty one.
func Of(list []float64) float64 {'
case $ATTEMPT_NUMBER in
0) # forgets even lengths
  printf '%s\n\tif len(list) == 0 {\n\t\treturn 0\n\t}\n\tlist = append([]float64(nil), list...)\n\tsort.Float64s(list)\n\treturn list[len(list)/2]\n}\n' "$head" >median.go ;;
1) # right
  printf '%s\n\tif len(list) == 0 {\n\t\treturn 0\n\t}\n\tlist = append([]float64(nil), list...)\n\tsort.Float64s(list)\n\tmid := len(list) / 2\n\tif len(list)%%2 == 1 {\n\t\treturn list[mid]\n\t}\n\treturn (list[mid-1] + list[mid]) / 2\n}\n' "$head" >median.go ;;
2) # right, and leaves a mess
  ATTEMPT_NUMBER=1 "$0"
  mkdir -p notes
  date >notes/plan.txt
  cp median.go notes/median.go.bak ;;
*) # gives up the test
  rm median_test.go
  exit 1 ;;
esac
