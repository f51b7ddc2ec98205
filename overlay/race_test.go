//go:build race

package overlay_test

const underRace = true // everything takes many times as long
