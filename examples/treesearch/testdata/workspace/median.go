// Package median has a bug.
package median

import "sort"

// Of gives the median of a list, which it leaves as it is; 0 of an empty one.
func Of(list []float64) float64 {
	sort.Float64s(list)
	return list[len(list)/2]
}
