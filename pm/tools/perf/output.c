/*
 * output.c - the figures as a table, as CSV, and as a plot made by gnuplot.
 */
#include "perf.h"

#include "../rail_names.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

struct summary {
	double median, least, greatest;
};

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static struct summary summarize(const struct samples *samples)
{
	size_t count = (size_t)samples->count;
	double *sorted = malloc(count * sizeof *sorted);
	if (!sorted)
		fail(-ENOMEM, "sort %zu figures", count);
	memcpy(sorted, samples->values, count * sizeof *sorted);
	qsort(sorted, count, sizeof *sorted, compare);
	struct summary summary = { (sorted[(count - 1) / 2] + sorted[count / 2]) / 2, sorted[0], sorted[count - 1] };
	free(sorted);
	return summary;
}

bool any_metric(sample_table samples, int curve, int size)
{
	return samples[curve][size][METRIC_LATENCY].count || samples[curve][size][METRIC_BANDWIDTH].count;
}

/* The median and its spread in columns; blank where nothing was measured. */
static void print_cells(const struct samples *samples, int decimals, int width)
{
	char spread[48];
	if (!samples->count) {
		printf("  %9s %-*s", "", width, "");
		return;
	}
	struct summary summary = summarize(samples);
	snprintf(spread, sizeof spread, "(%.*f..%.*f)", decimals, summary.least, decimals, summary.greatest);
	printf("  %9.*f %-*s", decimals, summary.median, width, spread);
}

void print_table(const struct settings *settings, sample_table samples)
{
	printf("%-16s %10s  %9s %-21s  %9s %-19s\n", "curve", "bytes", "us", "(least..greatest)", "MB/s", "(least..greatest)");
	for (int curve = 0; curve < CURVES; curve++)
		for (int size = 0; size < settings->size_count; size++) {
			if (!any_metric(samples, curve, size))
				continue;
			printf("%-16s %10zu", curve_names[curve], settings->sizes[size]);
			print_cells(&samples[curve][size][METRIC_LATENCY], 3, 21);
			print_cells(&samples[curve][size][METRIC_BANDWIDTH], 0, 0);
			putchar('\n');
		}
}

/* "verbs", "verbs+udp", or nothing */
static void print_rails(FILE *file, unsigned rails)
{
	const char *separator = "";
	for (unsigned i = 0; i < PM_RAILS; i++)
		if (rails & 1u << i) {
			fprintf(file, "%s%s", separator, rail_names[i]);
			separator = "+";
		}
}

void write_csv(const struct settings *settings, sample_table samples, hit_table hits)
{
	bool to_stdout = strcmp(settings->csv, "-") == 0;
	FILE *file = to_stdout ? stdout : fopen(settings->csv, "w");
	if (!file)
		fail(-errno, "%s", settings->csv);
	fprintf(file, "curve,size,metric,unit,median,least,greatest,repetitions,hits,rails\n");
	for (int curve = 0; curve < CURVES; curve++)
		for (int size = 0; size < settings->size_count; size++)
			for (int metric = 0; metric < METRICS; metric++) {
				const struct samples *taken = &samples[curve][size][metric];
				if (!taken->count)
					continue;
				struct summary summary = summarize(taken);
				fprintf(file, "%s,%zu,%s,%s,%.6g,%.6g,%.6g,%d,", curve_names[curve], settings->sizes[size],
					metric_names[metric], metric_units[metric], summary.median, summary.least, summary.greatest,
					taken->count);
				if (curve_hits(curve) >= 0)
					fprintf(file, "%.4g", hits[curve][size]);
				fputc(',', file);
				print_rails(file, taken->rails);
				fputc('\n', file);
			}
	if (fflush(file) || ferror(file) || (!to_stdout && fclose(file)))
		fail(-errno, "%s", settings->csv);
}

static const char *terminal_for(const char *path)
{
	const char *ending = strrchr(path, '.');
	if (ending && strcmp(ending, ".svg") == 0)
		return "svg size 1200,560 dynamic background rgb 'white'";
	if (ending && strcmp(ending, ".png") == 0)
		return "pngcairo size 1200,560";
	return NULL;
}

void check_plot(const char *path)
{
	if (!terminal_for(path))
		fail(0, "%s: a plot's name ends in .svg or .png", path);
	if (strchr(path, '\'') || strchr(path, '\n'))
		fail(0, "%s: gnuplot takes no such name", path);
	if (system("command -v gnuplot >/dev/null") != 0)
		fail(0, "gnuplot is not installed, which makes the plot (Debian package gnuplot-nox)");
}

static bool has_metric(const struct settings *settings, sample_table samples, int curve, int metric)
{
	for (int size = 0; size < settings->size_count; size++)
		if (samples[curve][size][metric].count)
			return true;
	return false;
}

static bool has_panel(const struct settings *settings, sample_table samples, int metric)
{
	for (int curve = 0; curve < CURVES; curve++)
		if (has_metric(settings, samples, curve, metric))
			return true;
	return false;
}

static void plot_panel(FILE *gnuplot, const struct settings *settings, sample_table samples, int metric)
{
	const char *separator = "plot ";
	for (int curve = 0; curve < CURVES; curve++) {
		if (!has_metric(settings, samples, curve, metric))
			continue;
		fprintf(gnuplot, "$data%d_%d << END\n", metric, curve);
		for (int size = 0; size < settings->size_count; size++)
			if (samples[curve][size][metric].count) {
				struct summary summary = summarize(&samples[curve][size][metric]);
				fprintf(gnuplot, "%zu %g %g %g\n", settings->sizes[size], summary.median, summary.least, summary.greatest);
			}
		fprintf(gnuplot, "END\n");
	}
	fprintf(gnuplot, "set title '%s'\nset ylabel '%s'\n",
		metric == METRIC_LATENCY ? "Time of one (median; bars: least to greatest)" : "Bandwidth (median; bars: least to greatest)",
		metric == METRIC_LATENCY ? "{/Symbol m}s" : "MB/s");
	for (int curve = 0; curve < CURVES; curve++) {
		if (!has_metric(settings, samples, curve, metric))
			continue;
		fprintf(gnuplot, "%s$data%d_%d using 1:2:3:4 with yerrorlines linetype %d linewidth 1.5 pointsize 0.5 title '%s'", separator, metric, curve,
			curve + 1, curve_names[curve]);
		separator = ", ";
	}
	fprintf(gnuplot, "\n");
}

void write_plot(const struct settings *settings, sample_table samples)
{
	signal(SIGPIPE, SIG_IGN);
	bool panels[METRICS];
	int panel_count = 0;
	for (int metric = 0; metric < METRICS; metric++)
		panel_count += panels[metric] = has_panel(settings, samples, metric);
	FILE *gnuplot = popen("gnuplot", "w");
	if (!gnuplot)
		fail(-errno, "start gnuplot");
	fprintf(gnuplot, "set terminal %s\nset output '%s'\n", terminal_for(settings->plot), settings->plot);
	fprintf(gnuplot, "set multiplot layout 1,%d title 'PM %s between two processes'\n", panel_count ? panel_count : 1, pm_version());
	fprintf(gnuplot, "set logscale xy\nset grid\nset key below reverse Left\nset xlabel 'bytes'\nset format x '%%.0s%%c'\n");
	for (int metric = 0; metric < METRICS; metric++)
		if (panels[metric])
			plot_panel(gnuplot, settings, samples, metric);
	int status = pclose(gnuplot);
	if (status != 0)
		fail(0, "gnuplot could not make %s", settings->plot);
}
