// Package wine holds the tests of the command line on Windows. run.sh builds them and runs them under Wine.
package wine
