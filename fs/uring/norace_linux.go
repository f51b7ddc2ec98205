//go:build !race

package uring

func raceRead()  {}
func raceWrite() {}
