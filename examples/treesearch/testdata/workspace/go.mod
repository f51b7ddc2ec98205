module example.test/median

go 1.22
